// tests/stress/row.h
//
// One line of the table of `make stress`: what was tried, what was wanted and what came out. Programs print them as
// JSON, a line each, on stdout; tests/stress/run_all.py reads them.
#pragma once

#include <ostream>
#include <string>

namespace dualpipe::stress {

struct ResultRow {
  std::string what;
  std::string wanted;
  std::string measured;
  std::string seed;  // Empty where nothing is random.
  bool reached = false;
};

// {"what":..,"wanted":..,"measured":..,"seed":..,"reached":..}
void print(std::ostream& out, const ResultRow& row);

}  // namespace dualpipe::stress
