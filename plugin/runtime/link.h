// plugin/runtime/link.h
//
// A directed edge between two ranks and the kind of traffic on it (plugin/runtime/transport.h).
#pragma once

#include <compare>
#include <string>

namespace dualpipe {

struct Link {
  int from = 0;
  int to = 0;
  int channel = 0;

  std::string to_string() const;  // "0 to 1 (channel 0)"
  friend auto operator<=>(const Link&, const Link&) = default;
};

}  // namespace dualpipe
