#include "core/config_reader.h"

namespace lockstep {

using nlohmann::json;

namespace {

std::string shown(const json& value) {
  std::string text = value.dump();
  if (text.size() > 60) {
    text.resize(57);
    text += "...";
  }
  return text;
}

template <class T>
struct Kind;
template <>
struct Kind<int64_t> {
  static constexpr const char* name = "an integer";
  static std::optional<int64_t> read(const json& v) {
    if (!v.is_number_integer()) return std::nullopt;
    if (v.is_number_unsigned() && v.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max()))
      return std::nullopt;
    return v.get<int64_t>();
  }
};
template <>
struct Kind<double> {
  static constexpr const char* name = "a number";
  static std::optional<double> read(const json& v) {
    return v.is_number() ? std::optional(v.get<double>()) : std::nullopt;
  }
};
template <>
struct Kind<bool> {
  static constexpr const char* name = "true or false";
  static std::optional<bool> read(const json& v) {
    return v.is_boolean() ? std::optional(v.get<bool>()) : std::nullopt;
  }
};
template <>
struct Kind<std::string> {
  static constexpr const char* name = "a string";
  static std::optional<std::string> read(const json& v) {
    return v.is_string() ? std::optional(v.get<std::string>()) : std::nullopt;
  }
};
template <class E>
struct Kind<std::vector<E>> {
  static constexpr const char* name = "a list";
  static std::optional<std::vector<E>> read(const json& v) {
    if (!v.is_array()) return std::nullopt;
    std::vector<E> list;
    for (const auto& item : v) {
      auto element = Kind<E>::read(item);
      if (!element) return std::nullopt;
      list.push_back(*element);
    }
    return list;
  }
};

}  // namespace

ConfigReader::ConfigReader(const json& object, std::string where, std::string pointer)
    : object_(object), where_(std::move(where)), pointer_(std::move(pointer)) {
  if (!object_.is_object()) {
    throw LoadError(
        fmt::format("{} {}: expected an object, found {}", where_, pointer_.empty() ? "/" : pointer_, shown(object_)));
  }
}

const json* ConfigReader::get(const std::string& key) {
  read_.insert(key);
  auto it = object_.find(key);
  if (it == object_.end() || it->is_null()) return nullptr;
  static const std::string kText = "/text_config";
  const auto pointer = pointer_.rfind(kText, 0) == 0 ? pointer_.substr(kText.size()) : pointer_;
  if (!it->is_object()) (*settings_)[pointer + "/" + key] = *it;
  return &*it;
}

bool ConfigReader::has(const std::string& key) const {
  auto it = object_.find(key);
  return it != object_.end() && !it->is_null();
}

ConfigReader ConfigReader::child(const std::string& key) {
  const json* value = get(key);
  if (!value) fail(key, "expected an object, found nothing");
  ConfigReader reader(*value, where_, pointer_ + "/" + key);
  reader.settings_ = settings_;
  return reader;
}

std::optional<ConfigReader> ConfigReader::find_child(const std::string& key) {
  read_.insert(key);
  return has(key) ? std::optional(child(key)) : std::nullopt;
}

std::vector<ConfigReader> ConfigReader::children(const std::string& key) {
  const json* list = raw(key);
  if (!list || !list->is_array()) fail(key, "expected a list, found " + (list ? shown(*list) : std::string("nothing")));
  std::vector<ConfigReader> readers;
  for (size_t i = 0; i < list->size(); ++i) {
    readers.emplace_back((*list)[i], where_, fmt::format("{}/{}/{}", pointer_, key, i));
    readers.back().settings_ = settings_;
  }
  return readers;
}

const json* ConfigReader::raw(const std::string& key) {
  read_.insert(key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigReader::fail(const std::string& key, const std::string& expected_found) const {
  throw LoadError(fmt::format("{}: {}", at(key), expected_found));
}

template <class T>
std::optional<T> ConfigReader::find(const std::string& key) {
  const json* value = get(key);
  if (!value) return std::nullopt;
  auto parsed = Kind<T>::read(*value);
  if (!parsed) fail(key, fmt::format("expected {}, found {}", Kind<T>::name, shown(*value)));
  return parsed;
}

template <class T>
T ConfigReader::require(const std::string& key) {
  auto value = find<T>(key);
  if (!value) fail(key, fmt::format("expected {}, found nothing; there is no default", Kind<T>::name));
  return *value;
}

#define LOCKSTEP_INSTANTIATE(T)                                        \
  template std::optional<T> ConfigReader::find<T>(const std::string&); \
  template T ConfigReader::require<T>(const std::string&);
LOCKSTEP_INSTANTIATE(int64_t)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(bool)
LOCKSTEP_INSTANTIATE(std::string)
LOCKSTEP_INSTANTIATE(std::vector<std::string>)
LOCKSTEP_INSTANTIATE(std::vector<int64_t>)
#undef LOCKSTEP_INSTANTIATE

int64_t ConfigReader::require_size(const std::string& key, int64_t least, int64_t most) {
  const auto value = require<int64_t>(key);
  if (value < least || value > most) {
    fail(key, fmt::format("expected an integer from {} to {}, found {}", least, most, value));
  }
  return value;
}

double ConfigReader::require_positive(const std::string& key) {
  const auto value = require<double>(key);
  if (!(value > 0) || !std::isfinite(value)) fail(key, fmt::format("expected a number above 0, found {}", value));
  return value;
}

void ConfigReader::ignore(std::initializer_list<const char*> keys) { read_.insert(keys.begin(), keys.end()); }

void ConfigReader::ignore_suffix(const std::string& suffix) {
  for (const auto& [key, value] : object_.items()) {
    if (key.ends_with(suffix)) read_.insert(key);
  }
}

void ConfigReader::expect(const std::string& key, const json& neutral) {
  const json* value = get(key);
  if (value && *value != neutral) {
    fail(key, fmt::format("{} is not implemented (implemented: {})", shown(*value), neutral.dump()));
  }
}

void ConfigReader::finish() const {
  Problems problems;
  for (const auto& [key, value] : object_.items()) {
    if (read_.count(key) || value.is_null() || key.rfind('_', 0) == 0) continue;
    problems.add(fmt::format("{}: unknown key, found {}; it may change the mathematics: remove it if it does not",
                             at(key), shown(value)));
  }
  problems.raise<LoadError>(where_);
}

double one_of_two(ConfigReader& a, const std::string& key_a, ConfigReader* b, const std::string& key_b,
                  std::optional<double> fallback) {
  const auto first = a.find<double>(key_a);
  const auto second = b ? b->find<double>(key_b) : std::nullopt;
  if (first && second && *first != *second) {
    throw LoadError(
        fmt::format("{} is {} but {} is {}: expected one value; remove the wrong one (transformers runs with "
                    "the nested one)",
                    a.at(key_a), *first, b->at(key_b), *second));
  }
  const auto value = first ? first : second ? second : fallback;
  if (!value) a.fail(key_a, "expected a number, found nothing; there is no default");
  if (!(*value > 0) || !std::isfinite(*value)) {
    (first ? a : *b).fail(first ? key_a : key_b, fmt::format("expected a number above 0, found {}", *value));
  }
  return *value;
}

}  // namespace lockstep
