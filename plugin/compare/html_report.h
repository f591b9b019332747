// plugin/compare/html_report.h
//
// html_report(): a comparison of schedules as one page that a browser opens without a network: figures, what every rank
// did when, measured and simulated, memory, losses.
#pragma once

#include <string>
#include <string_view>

namespace dualpipe {

// `comparison` is the text of a comparison.json ("dualpipe-comparison", version 1, docs/run_files.md), of which every
// figure may be null or missing. The page holds its style, its script and the data, and asks for nothing else. Throws
// ScheduleError where the text is no such comparison.
std::string html_report(std::string_view comparison);

}  // namespace dualpipe
