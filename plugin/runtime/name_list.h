// plugin/runtime/name_list.h
//
// A list of strings as one string and back, for names that cross a transport. Any bytes are allowed in a string.
#pragma once

#include <string>
#include <vector>

namespace dualpipe {

// Each as "<length>:<bytes>".
std::string encode_names(const std::vector<std::string>& names);
// The inverse. What encode_names() did not write is a broken invariant.
std::vector<std::string> decode_names(const std::string& bytes);

}  // namespace dualpipe
