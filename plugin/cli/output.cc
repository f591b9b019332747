#include "plugin/cli/output.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

void require(bool holds, const std::string& target) {
  if (!holds) {
    const std::string reason = errno != 0 ? std::strerror(errno) : "the file system refused it";
    throw ScheduleError("output", "cannot write " + target + ": " + reason + "; choose a path that can be written");
  }
}

}  // namespace

void write_output(const std::string& path, const std::function<void(std::ostream&)>& write) {
  errno = 0;
  if (path.empty()) {
    write(std::cout);
    require(std::cout.flush().good(), "to standard output");
    return;
  }
  std::ofstream file(path);
  require(file.is_open(), "'" + path + "'");
  write(file);
  require(file.flush().good(), "'" + path + "'");
}

}  // namespace dualpipe::cli
