// tests/schedule/refusal.h
//
// The words in which a caller's mistake is refused.
#pragma once

#include <string>

#include "plugin/schedule/error.h"

namespace dualpipe {

// what() of the ScheduleError that `act` throws, or "nothing was thrown".
template <typename Act>
std::string refusal_of(Act act) {
  try {
    act();
  } catch (const ScheduleError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace dualpipe
