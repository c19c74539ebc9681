// A config object that knows which of its keys were read: an absent key, a wrong type and a key that nobody knows are
// errors that carry the key's JSON pointer. Nothing has a silent default.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"

namespace lockstep {

class ConfigReader {
 public:
  /// `where` is the file's name, `pointer` the JSON pointer of `object` in it. Raises LoadError if it is no object.
  ConfigReader(const nlohmann::json& object, std::string where, std::string pointer = "");

  bool has(const std::string& key) const;  // present and not null
  /// The object under `key`. Raises LoadError if it is absent or no object.
  ConfigReader child(const std::string& key);
  /// The same, or nothing if the key is absent or null.
  std::optional<ConfigReader> find_child(const std::string& key);
  /// The objects of the list under `key`. Raises LoadError if it is absent, no list, or holds something else.
  std::vector<ConfigReader> children(const std::string& key);
  /// The value under `key` as it is, or null: for what is too large to be copied.
  const nlohmann::json* raw(const std::string& key);

  /// A key that must be there, of the right type; else LoadError. T: int64_t, double, bool, std::string,
  /// std::vector<std::string>, std::vector<int64_t>.
  template <class T>
  T require(const std::string& key);
  /// A key that may be absent or null. Raises LoadError for another type.
  template <class T>
  std::optional<T> find(const std::string& key);
  /// An integer from `least` to `most`.
  int64_t require_size(const std::string& key, int64_t least = 1, int64_t most = std::numeric_limits<int32_t>::max());
  /// A finite number greater than zero.
  double require_positive(const std::string& key);

  /// Keys that do not change the mathematics.
  void ignore(std::initializer_list<const char*> keys);
  void ignore_suffix(const std::string& suffix);
  /// A key that must be absent, null or `neutral`: any other value asks for something not implemented.
  void expect(const std::string& key, const nlohmann::json& neutral);
  /// Raises LoadError naming every key that was neither read nor ignored (null, and names that begin with "_", pass).
  void finish() const;

  /// Every plain value that was read, by its pointer (of a composite config: without "/text_config"), children
  /// included.
  using Settings = std::map<std::string, nlohmann::json>;
  const Settings& settings() const { return *settings_; }

  /// "config.json /rope_parameters/rope_theta"
  std::string at(const std::string& key) const { return fmt::format("{} {}/{}", where_, pointer_, key); }
  [[noreturn]] void fail(const std::string& key, const std::string& expected_found) const;

 private:
  const nlohmann::json* get(const std::string& key);
  const nlohmann::json& object_;
  std::string where_, pointer_;
  std::set<std::string> read_;
  std::shared_ptr<Settings> settings_ = std::make_shared<Settings>();
};

/// A number that may stand in two places: their common value. Raises LoadError naming both places if they differ, or
/// the first if both are absent and `fallback` is empty.
double one_of_two(ConfigReader& a, const std::string& key_a, ConfigReader* b, const std::string& key_b,
                  std::optional<double> fallback = std::nullopt);

}  // namespace lockstep
