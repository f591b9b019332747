#include "plugin/analysis/picture_style.h"

#include <algorithm>
#include <string_view>

#include "plugin/analysis/svg.h"

namespace dualpipe::analysis {
namespace {

constexpr std::string_view kLetters = "fbiw";
// The dark ones are dark enough for white numbers.
constexpr const char* kLightColours[] = {"#f8b566", "#7cc47f", "#8fd8c4", "#d3ebab"};
constexpr const char* kDarkColours[] = {"#bf5a0a", "#2b7436", "#17796a", "#5d7a1f"};

constexpr const char* kFixedRules[][2] = {
    {"text", "font-family:Helvetica,Arial,'DejaVu Sans',sans-serif;font-size:12px;fill:#263238"},
    {".title", "font-size:16px;font-weight:bold"},
    {".paper", "fill:#fff"},
    {".lane", "fill:#e3e7ea"},
    {".grid", "stroke:#c3ccd1;pointer-events:none"},
    {".tick", "text-anchor:middle"},
    {".right,.dualpipe .rank", "text-anchor:end"},
    {".n1,.dualpipe .n2", "text-anchor:middle;pointer-events:none"},
    {".n2", "fill:#fff"},
};

std::string rule(const std::string& selector, const std::string& body) {
  return ".dualpipe " + selector + "{" + body + "}\n";
}

std::string font_size(double font) { return "font-size:" + pixels(font) + "px"; }

double gap_width(const Layout& layout) { return std::clamp(layout.cell_font / 12, 0.2, 0.8); }

}  // namespace

Shades::Shades(const std::optional<Placement>& placement) : placement_(placement) {
  if (!placement_ || placement_->is_bidirectional()) {
    return;
  }
  dark_stages_.resize(placement_->stages(), false);
  for (int rank = 0; rank < placement_->ranks(); ++rank) {
    const std::vector<int> held = placement_->stages_of(rank);
    for (std::size_t i = 1; i < held.size(); i += 2) {
      dark_stages_[held[i]] = true;
    }
  }
}

bool Shades::is_dark(const Op& op) const {
  if (placement_ && placement_->is_bidirectional()) {
    return placement_->direction(op.micro_batch) == 1;
  }
  return op.stage < dark_stages_.size() && dark_stages_[op.stage];
}

std::string cell_class(Kind kind, bool dark) {
  return std::string(1, kLetters[static_cast<int>(kind)]) + (dark ? "2" : "1");
}

std::string number_class(bool dark) { return dark ? "n2" : "n1"; }

double frame_width(const Layout& layout) { return 1.5 * gap_width(layout); }

std::string style_sheet(const Layout& layout) {
  std::string rules;
  for (const auto& [selector, body] : kFixedRules) {
    rules += rule(selector, body);
  }
  rules += rule(".rank,.dualpipe .share", font_size(layout.rank_font));
  rules += rule(".cell text", font_size(layout.cell_font));
  rules += rule(".cell rect", "stroke:#fff;stroke-width:" + pixels(gap_width(layout)));
  for (std::size_t kind = 0; kind < kLetters.size(); ++kind) {
    const std::string letter(1, kLetters[kind]);
    rules += rule("." + letter + "1", std::string("fill:") + kLightColours[kind]);
    rules += rule("." + letter + "2", std::string("fill:") + kDarkColours[kind]);
  }
  rules += rule(".pair,.dualpipe .cell .pair",
                "fill:none;pointer-events:none;stroke:#1c2429;stroke-width:" + pixels(frame_width(layout)));
  return "<style>\n" + rules + "</style>";
}

}  // namespace dualpipe::analysis
