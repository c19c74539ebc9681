#include "cli/model.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/json.h"

namespace lockstep::cli {

namespace fs = std::filesystem;

namespace {

/// mirrors huggingface_hub constants: HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME or ~/.cache.
fs::path hub_cache() {
  const auto variable = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  if (const auto cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const auto home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  const auto xdg = variable("XDG_CACHE_HOME");
  return (xdg.empty() ? fs::path(variable("HOME")) / ".cache" : fs::path(xdg)) / "huggingface" / "hub";
}

bool is_hub_id(const std::string& text) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; };
  int slashes = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool starts = i == 0 || text[i - 1] == '/';
    if (text[i] == '/') ++slashes;
    if (text[i] == '/' ? starts : starts ? !std::isalnum(static_cast<unsigned char>(text[i])) : !plain(text[i])) {
      return false;
    }
  }
  return !text.empty() && slashes <= 1 && text.back() != '/';
}

}  // namespace

std::string resolve_model(const std::string& model) {
  std::error_code ec;
  if (model.empty()) {
    const auto program = fs::read_symlink("/proc/self/exe", ec);
    for (const char* place : {"../" LOCKSTEP_SITE_PACKAGES "/lockstep/embedded", "../share/lockstep/embedded"}) {
      const auto folder = (program.parent_path() / place).lexically_normal();
      std::error_code absent;
      if (!ec && fs::is_directory(folder, absent)) return folder.string();
    }
    throw LoadError("the embedded checkpoint is not beside this program: name a checkpoint folder");
  }
  if (fs::is_directory(model, ec)) return model;
  if (fs::exists(model, ec)) {
    throw LoadError(fmt::format("{}: expected a checkpoint folder or a hub id, found a file", model));
  }
  if (!is_hub_id(model)) throw LoadError(fmt::format("{}: no such folder, and not a hub id (org/name)", model));
  auto name = "models--" + model;
  if (const auto slash = name.find('/'); slash != std::string::npos) name.replace(slash, 1, "--");
  const auto home = hub_cache() / name;
  const auto main = home / "refs" / "main";
  if (fs::exists(main, ec)) {
    auto commit = read_text(main.string(), 4096);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
    const auto snapshot = home / "snapshots" / commit;
    if (commit.find('/') == std::string::npos && fs::is_directory(snapshot, ec)) return snapshot.string();
  }
  throw LoadError(fmt::format("{}: no such folder, and not in the hub cache {}; this program fetches nothing", model,
                              hub_cache().string()));
}

}  // namespace lockstep::cli
