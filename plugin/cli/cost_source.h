// plugin/cli/cost_source.h
//
// What --cost says: "forward=1,..." for any stage, or a cost file.
#pragma once

#include <optional>
#include <string>

#include "plugin/analysis/cost_file.h"

namespace dualpipe::cli {

class CostSource {
 public:
  // The value of --cost, if there is one. It is a file where it ends in ".json" or names one. Throws ScheduleError for
  // a mistake in either.
  explicit CostSource(const std::optional<std::string>& value);

  const std::optional<CostFile>& file() const { return file_; }
  std::string unit() const { return file_ ? "ms" : ""; }

  // For a plan of so many stages. Costs that are no file are those of each of its stages.
  FittedCost for_stages(int stages) const;
  // For plans that divide one model differently: costs that are no file are those of a stage where it is cut into
  // `cut`.
  FittedCost for_stages(int stages, int cut) const;

 private:
  std::optional<CostFile> file_;
  CostModel uniform_;
};

}  // namespace dualpipe::cli
