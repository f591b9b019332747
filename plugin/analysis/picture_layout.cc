#include "plugin/analysis/picture_layout.h"

#include <algorithm>
#include <cmath>

#include "plugin/analysis/svg.h"

namespace dualpipe::analysis {
namespace {

constexpr double kLeftMargin = 52;   // Rank labels.
constexpr double kRightMargin = 60;  // Idle shares.
constexpr double kLeastWidth = 960;
constexpr double kMostWidth = 1800;
constexpr double kMostWidthOfManyRanks = 4800;  // Beyond kFewRanks, where a picture is high as well.
constexpr double kMostWidthWithoutNumbers = 2400;
constexpr int kFewRanks = 32;
constexpr double kLanesHeight = 1152;  // Of 64 lanes that are high enough for a number of three digits.
constexpr double kMostPitch = 28;
constexpr double kLeastPitch = 3;
constexpr double kMostFont = 12;
constexpr double kLeastFont = 7;  // Smaller numbers are left out.
constexpr double kComfortableFont = 10;
constexpr double kTickDistance = 64;

// Of the cells that take time, the width in time that half of them have at least; and the largest number.
struct CellStatistics {
  double median = 0;
  int most_microbatch = 0;
};

CellStatistics look_at_cells(const Timeline& timeline) {
  CellStatistics statistics;
  std::vector<double> durations;
  for (const std::vector<Span>& spans : timeline.ranks) {
    for (const Span& span : spans) {
      const CellTimes cell = cells_of(span).front();
      const double duration = cell.end - cell.start;
      if (duration > 0) {
        durations.push_back(duration);
      }
      statistics.most_microbatch = std::max(statistics.most_microbatch, span.action.op.micro_batch);
    }
  }
  if (!durations.empty()) {
    const auto middle = durations.begin() + static_cast<std::ptrdiff_t>(durations.size() / 2);
    std::nth_element(durations.begin(), middle, durations.end());
    statistics.median = *middle;
  }
  return statistics;
}

double width_of_number(const CellStatistics& cells, double font) {
  return text_width(std::to_string(cells.most_microbatch), font) + 3;
}

// The largest font whose numbers fit into `along` in the direction of reading and `across` it.
double fitting_font(const CellStatistics& cells, double along, double across) {
  const double by_length = (along - 2) / text_width(std::to_string(cells.most_microbatch), 1);
  return std::min({by_length, across - 1, kMostFont});
}

struct Room {
  double cell = 0;  // Pixels that a cell takes for its number.
  double most = 0;  // Of the picture.
};

// Numbers are read flat where lanes are few, else from below, which needs less width, where lanes are high enough.
Room natural_room(const CellStatistics& cells, const Layout& layout) {
  const double flat = width_of_number(cells, kComfortableFont) + 3;
  if (layout.ranks <= kFewRanks) {
    return {flat, kMostWidth};
  }
  const double upright = std::min(fitting_font(cells, layout.lane, kMostFont), kComfortableFont);
  return upright >= kLeastFont ? Room{upright + 1, kMostWidthOfManyRanks} : Room{flat, kMostWidthWithoutNumbers};
}

double natural_width(const CellStatistics& cells, double makespan, const Layout& layout) {
  const Room room = natural_room(cells, layout);
  const double per_unit = cells.median > 0 ? room.cell / cells.median : 0;
  return std::round(std::clamp(makespan * per_unit + kLeftMargin + kRightMargin, kLeastWidth, room.most));
}

void choose_font(const CellStatistics& cells, Layout& layout) {
  const double cell = cells.median * layout.scale;
  const double flat = fitting_font(cells, cell, 0.8 * layout.lane);
  const double upright = fitting_font(cells, layout.lane, cell);
  layout.upright = flat < 6 && upright > flat;
  layout.cell_font = rounded(layout.upright ? upright : flat);
  layout.has_numbers = layout.cell_font >= kLeastFont;
}

void choose_rank_labels(Layout& layout) {
  layout.rank_font = std::clamp(0.7 * layout.pitch, 8.0, 12.0);
  layout.ranks_per_label = static_cast<int>(std::ceil(1.1 * layout.rank_font / layout.pitch));
}

// 1, 2 or 5 times a power of ten.
double choose_tick(double scale) {
  const double least = kTickDistance / scale;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) {
      return factor * power;
    }
  }
  return 10 * power;
}

}  // namespace

std::vector<CellTimes> cells_of(const Span& span) {
  if (!span.action.paired) {
    return {{span.start, span.end}};
  }
  const double middle = (span.start + span.end) / 2;
  return {{span.start, middle}, {middle, span.end}};
}

Layout lay_out(const Timeline& timeline, int width, double header, double footer) {
  const CellStatistics cells = look_at_cells(timeline);
  const double makespan = timeline.makespan();
  Layout layout;
  layout.ranks = static_cast<int>(timeline.ranks.size());
  layout.pitch = rounded(std::clamp(kLanesHeight / std::max(layout.ranks, 1), kLeastPitch, kMostPitch));
  layout.lane = layout.pitch >= 8 ? rounded(layout.pitch * 0.88) : layout.pitch;
  layout.width = width > 0 ? width : natural_width(cells, makespan, layout);
  layout.left = kLeftMargin;
  layout.right = layout.width - kRightMargin;
  layout.scale = makespan > 0 ? (layout.right - layout.left) / makespan : 0;
  layout.top = header + (layout.has_upper_axis() ? 20 : 0);
  layout.height = layout.bottom() + footer;
  layout.tick = layout.scale > 0 ? choose_tick(layout.scale) : 0;
  choose_font(cells, layout);
  choose_rank_labels(layout);
  return layout;
}

}  // namespace dualpipe::analysis
