// lockstep.manifest.json: what an export holds, where each of its bytes came from, and how it was verified.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep {

/// The newest manifest this code reads and writes.
constexpr int64_t kManifestVersion = 1;

/// The text of a manifest, canonical, with its own digest added: SHA-256 over the text without it.
std::string manifest_text(nlohmann::json manifest);

/// A manifest's digest, from its content. `manifest` may hold one already; it is left out.
std::string manifest_digest(nlohmann::json manifest);

/// Why a manifest's text is not as it was written, or empty: not JSON, not canonical, another digest.
std::string altered(const std::string& text);

/// Does the text state a format that this code does not know? Then nothing else of it can be judged.
bool of_another_version(const std::string& text);

/// Reads a manifest that is not altered. Raises LoadError for an unknown version and for what is not where it belongs.
nlohmann::json read_manifest(const std::string& text, const std::string& where);

}  // namespace lockstep
