#include "verify/sublayers.h"

namespace lockstep {

bool Sublayer::holds(const std::string& point) const {
  if (point.compare(0, path.size(), path) != 0 || point.size() == path.size()) return false;
  return point[path.size()] == '.' || point[path.size()] == '@';
}

std::vector<Sublayer> sublayers_of(const CausalLM& model) {
  std::vector<Sublayer> list;
  list.push_back({"model.embed_tokens", Kind::embedding, -1, {}});
  list.push_back({"model.rotary_emb", Kind::rotary, -1, {}});
  std::string stream = "model.embed_tokens.output";
  const auto& types = model.mechanisms().layer_types;
  for (size_t i = 0; i < types.size(); ++i) {
    const auto layer = "model.layers." + std::to_string(i);
    const auto n = static_cast<int64_t>(i);
    const bool linear = types[i] == "linear_attention";
    const auto mixer = layer + (linear ? ".linear_attn" : ".self_attn");
    auto input = [](const std::string& path) { return path + ".input"; };
    auto output = [](const std::string& path) { return path + ".output"; };
    const auto first = layer + ".input_layernorm", second = layer + ".post_attention_layernorm", mlp = layer + ".mlp";
    list.push_back({first, Kind::norm, n, {input(first), input(layer), stream}});
    list.push_back({mixer, linear ? Kind::linear_attn : Kind::self_attn, n, {input(mixer), output(first)}});
    list.push_back({second, Kind::norm, n, {input(second)}});
    list.push_back({mlp, Kind::mlp, n, {input(mlp), output(second)}});
    list.push_back({layer, Kind::layer, n, {input(layer), stream, input(first)}});
    stream = output(layer);
  }
  list.push_back({"model.norm", Kind::norm, -1, {"model.norm.input", stream}});
  list.push_back({"lm_head", Kind::head, -1, {"lm_head.input", "model.norm.output", "model.output"}});
  return list;
}

Sublayer sublayer_of(const std::vector<Sublayer>& all, const std::string& point) {
  Sublayer best{"", Kind::layer, -1, {}};
  for (const auto& s : all) {
    if (s.holds(point) && s.path.size() > best.path.size()) best = s;
  }
  return best;
}

}  // namespace lockstep
