// plugin/cli/terminal.h
//
// What standard output can show.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace dualpipe::cli {

// Adds --colour auto|always|never (and --color). "auto" is a terminal without the NO_COLOR variable (no-color.org).
void add_colour_option(CLI::App& command, std::string& choice);
bool wants_colour(const std::string& choice);

bool is_terminal();
// Columns of the terminal on standard output, or of the COLUMNS variable; 0 where there is no terminal.
int terminal_width();

}  // namespace dualpipe::cli
