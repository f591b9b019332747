#include "examples/pretrain_gpt/checkpoint/strict_json.h"

#include <fmt/format.h>

#include <limits>
#include <set>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"

namespace pretrain_gpt {
namespace {

using nlohmann::json;

// Told of every step of the parser.
class Watcher {
 public:
  Watcher(const std::string& origin, int most_depth) : origin_(origin), most_depth_(most_depth) {}

  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      check_depth(depth);
    }
    if (event == json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == json::parse_event_t::key && !keys_.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw CheckpointError(origin_, fmt::format("a key must be there once, got {} twice", shown(parsed)));
    }
    return true;
  }

 private:
  void check_depth(int depth) const {
    if (depth >= most_depth_) {
      throw CheckpointError(origin_, fmt::format("must be JSON of at most {} levels, got more", most_depth_));
    }
  }

  const std::string& origin_;
  int most_depth_;
  std::vector<std::set<std::string>> keys_;
};

[[noreturn]] void refuse(const json& value, const std::string& where, const std::string& wanted,
                         const std::string& origin) {
  throw CheckpointError(origin, fmt::format("{} must be {}, got {}", where, wanted, shown(value)));
}

}  // namespace

json parse_strict_json(std::string_view text, const std::string& origin, int most_depth) {
  Watcher watcher(origin, most_depth);
  try {
    return json::parse(
        text, [&](int depth, json::parse_event_t event, json& parsed) { return watcher(depth, event, parsed); });
  } catch (const json::exception& error) {
    throw CheckpointError(origin, fmt::format("must be JSON, got: {}", error.what()));
  }
}

const json& member(const json& object, const std::string& key, const std::string& where, const std::string& origin) {
  if (!object.is_object()) {
    refuse(object, where, "an object", origin);
  }
  const auto found = object.find(key);
  if (found == object.end()) {
    throw CheckpointError(origin, fmt::format("{} must have {}, got none", where, key));
  }
  return *found;
}

std::int64_t as_count(const json& value, const std::string& where, const std::string& origin) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
    refuse(value, where, "an integer of at least 0", origin);
  }
  return value.get<std::int64_t>();
}

std::vector<std::int64_t> as_counts(const json& value, const std::string& where, const std::string& origin) {
  if (!value.is_array()) {
    refuse(value, where, "a list of integers", origin);
  }
  std::vector<std::int64_t> counts;
  for (const json& item : value) {
    counts.push_back(as_count(item, where, origin));
  }
  return counts;
}

std::string as_text(const json& value, const std::string& where, const std::string& origin) {
  if (!value.is_string()) {
    refuse(value, where, "text", origin);
  }
  return value.get<std::string>();
}

std::string shown(const json& value) {
  constexpr std::size_t most = 60;
  if (value.is_structured()) {
    return value.is_object() ? "an object" : fmt::format("a list of {}", value.size());
  }
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() <= most ? text : text.substr(0, most) + "...";
}

}  // namespace pretrain_gpt
