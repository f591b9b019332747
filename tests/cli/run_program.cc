#include "tests/cli/run_program.h"

#include <sys/wait.h>

#include <cstdlib>

namespace dualpipe {

Outcome run_dualpipe(const std::string& arguments, const std::string& before) {
  const TemporaryFolder folder;
  const std::string command =
      before + " '" DUALPIPE_PROGRAM "' " + arguments + " >'" + folder.file("out") + "' 2>'" + folder.file("err") + "'";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(folder.file("out")), read_text(folder.file("err"))};
}

}  // namespace dualpipe
