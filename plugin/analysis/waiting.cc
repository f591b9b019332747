#include "plugin/analysis/waiting.h"

#include <algorithm>

namespace dualpipe::analysis {
namespace {

constexpr std::size_t kMostTold = 6;

// The ranks of the circle that starts from `rank`, lowest first; or the last stuck rank alone.
std::vector<int> circle_from(int rank, const std::vector<std::optional<Wait>>& waits) {
  std::vector<int> path;
  std::vector<char> visited(waits.size(), 0);
  while (waits[rank] && visited[rank] == 0) {
    visited[rank] = 1;
    path.push_back(rank);
    rank = waits[rank]->peer;
  }
  if (!waits[rank]) {
    return {path.back()};
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), rank));
  std::rotate(path.begin(), std::min_element(path.begin(), path.end()), path.end());
  return path;
}

}  // namespace

void add_deadlock(Violation::Rule rule, const std::vector<std::optional<Wait>>& waits, Findings& findings) {
  const auto stuck = std::find_if(waits.begin(), waits.end(), [](const auto& wait) { return wait.has_value(); });
  const std::vector<int> circle = circle_from(static_cast<int>(stuck - waits.begin()), waits);
  std::string message;
  for (std::size_t i = 0; i < circle.size() && i < kMostTold; ++i) {
    message += (i == 0 ? "" : "; ") + waits[circle[i]]->text;
  }
  if (circle.size() > kMostTold) {
    message += "; and so on over " + std::to_string(circle.size()) + " ranks";
  }
  findings.add(rule, circle.front(), waits[circle.front()]->column, message);
}

}  // namespace dualpipe::analysis
