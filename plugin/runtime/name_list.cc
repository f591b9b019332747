#include "plugin/runtime/name_list.h"

#include <charconv>

#include "plugin/schedule/error.h"

namespace dualpipe {

std::string encode_names(const std::vector<std::string>& names) {
  std::string bytes;
  for (const std::string& name : names) bytes += std::to_string(name.size()) + ":" + name;
  return bytes;
}

std::vector<std::string> decode_names(const std::string& bytes) {
  std::vector<std::string> names;
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  while (at != end) {
    std::size_t size = 0;
    const auto [colon, error] = std::from_chars(at, end, size);
    check(error == std::errc() && colon != end && *colon == ':', "a list of names has lengths");
    check(size <= static_cast<std::size_t>(end - colon - 1), "a list of names is complete");
    names.emplace_back(colon + 1, size);
    at = colon + 1 + size;
  }
  return names;
}

}  // namespace dualpipe
