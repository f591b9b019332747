// plugin/compare/comparison_json.h
//
// to_json(): a comparison as comparison.json, the form that docs/run_files.md describes and html_report() shows.
#pragma once

#include <string>

#include "plugin/compare/comparison.h"

namespace dualpipe {

// One object; a figure that is not known or not finite is null. Ends with a newline.
std::string to_json(const Comparison& comparison);

}  // namespace dualpipe
