#include "plugin/analysis/picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>
#include <vector>

#include "plugin/analysis/picture_layout.h"
#include "plugin/analysis/picture_style.h"
#include "plugin/analysis/svg.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {

using namespace analysis;

namespace {

constexpr double kHeader = 98;
constexpr double kAxis = 40;  // Ticks, their numbers and the word "time".
constexpr double kLegendLine = 22;
constexpr double kMargin = 16;
constexpr double kTitleFont = 16;
constexpr double kTextFont = 12;
constexpr double kSink = 0.35;  // From the middle of a digit to its baseline, of the font size.

constexpr std::array<const char*, 4> kNames = {"F forward", "B backward", "I input gradient", "W weight gradient"};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

std::string with_unit(const std::string& text, const std::string& unit) {
  return unit.empty() ? text : text + " " + unit;
}

struct Used {
  std::set<int> kinds;
  bool light = false;
  bool dark = false;
  bool pair = false;
};

class Picture {
 public:
  Picture(const Timeline& timeline, const PictureOptions& options)
      : timeline_(timeline), options_(options), makespan_(timeline.makespan()), shades_(options.placement) {
    for (const std::vector<Span>& spans : timeline.ranks) {
      for (const Span& span : spans) {
        note(span.action);
      }
    }
    layout_ = lay_out(timeline, options.width, kHeader, kAxis);
    layout_.height += kMargin + place_legend();
  }

  std::string draw() {
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"dualpipe\" width=\"" + pixels(layout_.width) +
           "\" height=\"" + pixels(layout_.height) + "\" viewBox=\"0 0 " + pixels(layout_.width) + " " +
           pixels(layout_.height) + "\" role=\"img\">\n";
    out_ += "<title>" + escaped(options_.title.empty() ? figures() : options_.title) + "</title>\n";
    put(style_sheet(layout_));
    put(rect("paper", {0, 0, layout_.width, layout_.height}));
    draw_header();
    for (int rank = 0; rank < layout_.ranks; ++rank) {
      draw_lane(rank);
    }
    draw_axis();
    for (int rank = 0; rank < layout_.ranks; ++rank) {
      draw_cells(rank);
    }
    out_ += legend_ + "</svg>\n";
    return std::move(out_);
  }

 private:
  void put(const std::string& element) { out_ += element + "\n"; }

  void note(const Op& op) {
    used_.kinds.insert(static_cast<int>(op.kind));
    (shades_.is_dark(op) ? used_.dark : used_.light) = true;
  }

  void note(const Action& action) {
    note(action.op);
    if (action.paired) {
      note(*action.paired);
      used_.pair = true;
    }
  }

  double worst_idle() const {
    double worst = 0;
    for (int rank = 0; rank < layout_.ranks; ++rank) {
      worst = std::max(worst, timeline_.idle(rank));
    }
    return worst;
  }

  std::string figures() const {
    const double worst = makespan_ > 0 ? worst_idle() / makespan_ : 0;
    return "makespan " + with_unit(number(makespan_), options_.unit) + "; bubble " +
           percent(1 - timeline_.utilization()) + " of the ranks' time, " + percent(worst) + " on the worst rank";
  }

  void draw_header() {
    const double room = layout_.width - 2 * kMargin;
    put(text("title", kMargin, 28, shortened(options_.title, kTitleFont, room)));
    put(text("figures", kMargin, 49, shortened(figures(), kTextFont, room)));
    put(text("caption", kMargin, 68, shortened(options_.caption, kTextFont, room)));
    put(text("right", layout_.left - 8, layout_.top - 8, "rank"));
    put(text("head", layout_.right + 8, layout_.top - 8, "idle"));
  }

  void draw_axis() {
    const double bottom = layout_.bottom() + 3;
    for (int index = 0; layout_.tick > 0 && index * layout_.tick <= makespan_ * (1 + 1e-9); ++index) {
      const double x = layout_.x(index * layout_.tick);
      const std::string label = number(index * layout_.tick);
      put(line("grid", x, layout_.top - 3, x, bottom + 4));
      put(text("tick", x, bottom + 18, label));
      if (layout_.has_upper_axis()) {
        put(text("tick", x, layout_.top - 8, label));
      }
    }
    const std::string name = options_.unit.empty() ? "time" : "time in " + options_.unit;
    put(text("tick", (layout_.left + layout_.right) / 2, bottom + 34, name));
  }

  void draw_lane(int rank) {
    const double top = layout_.y(rank);
    const double idle = timeline_.idle(rank);
    out_ += "<g><title>rank " + std::to_string(rank) + " idles " + with_unit(number(idle), options_.unit) + " of " +
            with_unit(number(makespan_), options_.unit) + "</title>" +
            rect("lane", {layout_.left, top, layout_.right - layout_.left, layout_.lane}) + "</g>\n";
    if (rank % layout_.ranks_per_label == 0) {
      const double baseline = top + layout_.lane / 2 + kSink * layout_.rank_font;
      put(text("rank", layout_.left - 8, baseline, std::to_string(rank)));
      put(text("share", layout_.right + 8, baseline, percent(makespan_ > 0 ? idle / makespan_ : 0)));
    }
  }

  void draw_cells(int rank) {
    put("<g id=\"rank" + std::to_string(rank) + "\">");
    for (const Span& span : timeline_.ranks[rank]) {
      draw_action(span, layout_.y(rank));
    }
    put("</g>");
  }

  Box box(const CellTimes& cell, double top) const {
    const double left = rounded(layout_.x(cell.start));
    return {left, top, rounded(layout_.x(cell.end)) - left, layout_.lane};
  }

  void draw_action(const Span& span, double top) {
    const std::vector<CellTimes> cells = cells_of(span);
    std::string name = to_string(span.action.op);
    if (span.action.paired) {
      name += " +" + to_string(*span.action.paired);
    }
    out_ += "<g class=\"cell\"><title>" + name + ", " + number(span.start) + " to " +
            with_unit(number(span.end), options_.unit) + "</title>";
    draw_cell(span.action.op, box(cells[0], top));
    if (span.action.paired) {
      draw_cell(*span.action.paired, box(cells[1], top));
      draw_frame(box({span.start, span.end}, top));
    }
    put("</g>");
  }

  void draw_cell(const Op& op, const Box& box) {
    const bool dark = shades_.is_dark(op);
    out_ += rect(cell_class(op.kind, dark), box);
    const std::string label = std::to_string(op.micro_batch);
    if (!layout_.has_numbers || !fits(label, box)) {
      return;
    }
    const double x = box.left + box.width / 2;
    const double y = box.top + box.height / 2;
    const double sink = kSink * layout_.cell_font;
    out_ += layout_.upright ? upright_text(number_class(dark), x + sink, y, label)
                            : text(number_class(dark), x, y + sink, label);
  }

  bool fits(const std::string& label, const Box& box) const {
    const double along = layout_.upright ? box.height : box.width;
    const double across = layout_.upright ? box.width : box.height;
    return text_width(label, layout_.cell_font) + 1 <= along && layout_.cell_font <= across;
  }

  void draw_frame(const Box& box) {
    const double inset = frame_width(layout_) / 2;
    if (box.width > 2 * inset && box.height > 2 * inset) {
      out_ += rect("pair", {box.left + inset, box.top + inset, box.width - 2 * inset, box.height - 2 * inset});
    }
  }

  struct LegendEntry {
    std::string swatches;  // Elements around (0, 0), 14 high.
    double width = 0;      // Of the swatches.
    std::string name;
  };

  LegendEntry kind_entry(int kind) const {
    LegendEntry entry{"", 0, kNames[kind]};
    for (const bool dark : {false, true}) {
      if (dark ? used_.dark : used_.light) {
        entry.swatches += rect(cell_class(static_cast<Kind>(kind), dark), {entry.width, 0, 16, 14});
        entry.width += 16;
      }
    }
    return entry;
  }

  std::string describe_shades() const {
    if (options_.placement->is_bidirectional()) {
      return "dark: micro-batches that enter at rank " + std::to_string(layout_.ranks - 1);
    }
    return options_.placement->stages() > 2 * layout_.ranks ? "dark: every other stage of a rank"
                                                            : "dark: the second stage of a rank";
  }

  std::vector<LegendEntry> legend_entries() const {
    std::vector<LegendEntry> entries;
    for (const int kind : used_.kinds) {
      entries.push_back(kind_entry(kind));
    }
    if (used_.pair) {
      entries.push_back({rect("f1", {0, 0, 16, 14}) + rect("b1", {16, 0, 16, 14}) + rect("pair", {0, 0, 32, 14}), 32,
                         "F and B overlapped"});
    }
    entries.push_back({rect("lane", {0, 0, 16, 14}), 16, "idle (bubble)"});
    if (used_.dark) {
      entries.push_back({"", 0, describe_shades()});
    }
    entries.push_back({"", 0,
                       layout_.has_numbers ? "numbers are micro-batches; hover for stage and times"
                                           : "hover for stage, micro-batch and times"});
    return entries;
  }

  // Fills legend_ and returns its height.
  double place_legend() {
    const double start = layout_.height;
    double x = kMargin;
    double y = start + 4;
    for (const LegendEntry& entry : legend_entries()) {
      const double gap = entry.width > 0 ? 6 : 0;
      const double width = entry.width + gap + text_width(entry.name, kTextFont);
      if (x > kMargin && x + width > layout_.width - kMargin) {
        x = kMargin;
        y += kLegendLine;
      }
      legend_ += "<g class=\"key\" transform=\"translate(" + pixels(x) + " " + pixels(y) + ")\">" + entry.swatches +
                 text("name", entry.width + gap, 11, entry.name) + "</g>\n";
      x += width + 20;
    }
    return y + kLegendLine - start;
  }

  const Timeline& timeline_;
  const PictureOptions& options_;
  const double makespan_;
  const Shades shades_;
  Used used_;
  Layout layout_;
  std::string legend_;
  std::string out_;
};

std::size_t count_actions(const Timeline& timeline) {
  std::size_t count = 0;
  for (const std::vector<Span>& spans : timeline.ranks) {
    count += spans.size();
  }
  return count;
}

}  // namespace

std::string to_svg(const Timeline& timeline, const PictureOptions& options) {
  if (options.width != 0 && options.width < kLeastPictureWidth) {
    throw ScheduleError("picture", "width must be at least " + std::to_string(kLeastPictureWidth) + " pixels, got " +
                                       std::to_string(options.width));
  }
  if (const std::size_t actions = count_actions(timeline); actions > kMostPictureActions) {
    throw ScheduleError("picture", "a picture holds at most " + std::to_string(kMostPictureActions) + " actions, got " +
                                       std::to_string(actions) + "; fewer ranks or micro-batches can be drawn");
  }
  return Picture(timeline, options).draw();
}

}  // namespace dualpipe
