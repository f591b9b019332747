#include "plugin/runtime/link.h"

namespace dualpipe {

std::string Link::to_string() const {
  return std::to_string(from) + " to " + std::to_string(to) + " (channel " + std::to_string(channel) + ")";
}

}  // namespace dualpipe
