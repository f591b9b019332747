// plugin/cli/output.h
//
// Where a command's result goes: a file, or standard output.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace dualpipe::cli {

// Lets `write` fill the file at `path`, or standard output where path is empty. Throws ScheduleError with the system's
// reason where the file cannot be opened or not everything could be written.
void write_output(const std::string& path, const std::function<void(std::ostream&)>& write);

}  // namespace dualpipe::cli
