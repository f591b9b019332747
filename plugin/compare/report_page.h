// plugin/compare/report_page.h
//
// The files of report/, which the build turns into strings (cmake/DualPipeEmbed.cmake): an installed program needs no
// file beside it.
#pragma once

#include <span>
#include <string_view>

namespace dualpipe::compare {

struct PageFile {
  std::string_view name;  // "report.css"
  std::string_view text;
};

// report.html first, which says {{report.css}} where another file goes, and {{title}} and {{data}}.
std::span<const PageFile> report_page();

}  // namespace dualpipe::compare
