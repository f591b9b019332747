#include "plugin/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace dualpipe::cli {
namespace {

constexpr int kUsualWidth = 100;

bool has_no_color() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

}  // namespace

void add_colour_option(CLI::App& command, std::string& choice) {
  command.add_option("--colour,--color", choice, "auto, always or never; auto honours NO_COLOR")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
}

bool wants_colour(const std::string& choice) {
  return choice == "always" || (choice == "auto" && is_terminal() && !has_no_color());
}

bool is_terminal() { return isatty(STDOUT_FILENO) == 1; }

int terminal_width() {
  if (!is_terminal()) {
    return 0;
  }
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  const char* columns = std::getenv("COLUMNS");
  const int width = columns == nullptr ? 0 : std::atoi(columns);
  return width > 0 ? width : kUsualWidth;
}

}  // namespace dualpipe::cli
