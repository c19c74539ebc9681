#include "nn/recorder.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep {

Level level_of(const std::string& point) {
  static constexpr std::array<std::string_view, 6> kStates = {
      "cos", "sin", "conv_state", "recurrent_state", "key_cache", "value_cache"};
  if (const auto at = point.find('@'); at != std::string::npos) {
    const auto value = std::string_view(point).substr(at + 1);
    return std::find(kStates.begin(), kStates.end(), value) != kStates.end() ? Level::sublayer : Level::all;
  }
  const auto dot = point.rfind('.');
  const std::string path = point.substr(0, dot);
  const bool output = point.compare(dot + 1, std::string::npos, "output") == 0;
  if (path == "lm_head" || path == "model.norm") return output ? Level::layer : Level::sublayer;
  if (path == "model.embed_tokens" || path == "model.rotary_emb") return Level::sublayer;
  const std::string layers = "model.layers.";
  if (path.rfind(layers, 0) != 0) return Level::all;
  const auto parts = std::count(path.begin() + static_cast<std::ptrdiff_t>(layers.size()), path.end(), '.');
  if (parts == 0) return output ? Level::layer : Level::all;  // model.layers.3
  return parts == 1 ? Level::sublayer : Level::all;           // model.layers.3.mlp
}

}  // namespace lockstep
