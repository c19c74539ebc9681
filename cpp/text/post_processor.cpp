#include "text/post_processor.h"

namespace lockstep {

namespace {

/// The single-sequence template: special tokens by name, and the text itself, once.
void read_template(ConfigReader& reader, PostProcessor& out) {
  auto special = reader.child("special_tokens");
  bool text = false;
  reader.raw("pair");  // two texts at once are never asked for
  for (auto& part : reader.children("single")) {
    if (part.has("Sequence")) {
      auto sequence = part.child("Sequence");
      if (sequence.require<std::string>("id") != "A" || text) sequence.fail("id", "expected the text A once");
      sequence.ignore({"type_id"});
      sequence.finish();
      text = true;
    } else {
      auto token = part.child("SpecialToken");
      const auto name = token.require<std::string>("id");
      token.ignore({"type_id"});
      token.finish();
      auto entry = special.child(name);
      const auto ids = entry.require<std::vector<int64_t>>("ids");
      const auto tokens = entry.require<std::vector<std::string>>("tokens");
      entry.ignore({"id"});
      entry.finish();
      if (ids.empty() || ids.size() != tokens.size()) entry.fail("ids", "expected as many as tokens, and at least one");
      for (size_t i = 0; i < ids.size(); ++i) (text ? out.after : out.before).push_back({ids[i], tokens[i], 0, 0});
    }
    part.finish();
  }
  if (!text) reader.fail("single", "expected the text A once, found it nowhere");
}

void read(ConfigReader& reader, PostProcessor& out) {
  const auto type = reader.require<std::string>("type");
  if (type == "Sequence") {
    for (auto& part : reader.children("processors")) read(part, out);
  } else if (type == "TemplateProcessing") {
    if (!out.before.empty() || !out.after.empty()) reader.fail("type", "a second template is not implemented");
    read_template(reader, out);
  } else if (type == "ByteLevel") {
    out.trims = reader.find<bool>("trim_offsets").value_or(true);
    out.keeps_prefix = reader.find<bool>("add_prefix_space").value_or(true);
    reader.find<bool>("use_regex");  // of the pre-tokenizer alone
  } else {
    reader.fail("type",
                fmt::format("\"{}\" is not implemented (implemented: Sequence, TemplateProcessing, ByteLevel)", type));
  }
  reader.finish();
}

}  // namespace

PostProcessor read_post_processor(ConfigReader& file, const std::string& key) {
  PostProcessor out;
  if (auto reader = file.find_child(key)) read(*reader, out);
  return out;
}

}  // namespace lockstep
