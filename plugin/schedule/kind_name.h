// plugin/schedule/kind_name.h
//
// How kinds are spelled in the text form, for its printer and its parser.
#pragma once

#include <array>
#include <string_view>

#include "plugin/schedule/action.h"

namespace dualpipe {

// In the order of Kind.
inline constexpr std::array<std::string_view, kKindCount> kKindNames = {
    "F",      "B",           "I",           "W",           "SEND_F",           "RECV_F",  "SEND_B",
    "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B", "REDUCE_GRAD", "WAIT_REDUCE_GRAD", "UNSHARD", "RESHARD",
};
inline constexpr std::string_view kOverlapName = "OVERLAP_F_B";

constexpr std::string_view kind_name(Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

}  // namespace dualpipe
