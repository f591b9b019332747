#include "examples/pretrain_gpt/failures/failure.h"

#include <fmt/format.h>

#include <cctype>

#include <nlohmann/json.hpp>

namespace pretrain_gpt {
namespace {

using Json = nlohmann::json;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// "<stage><kind><micro-batch>": the numbers at both ends of a cell.
std::string explain_cell(const std::string& cell) {
  std::size_t stage_end = 0;
  while (stage_end < cell.size() && std::isdigit(static_cast<unsigned char>(cell[stage_end])) != 0) {
    ++stage_end;
  }
  std::size_t number = cell.size();
  while (number > stage_end && std::isdigit(static_cast<unsigned char>(cell[number - 1])) != 0) {
    --number;
  }
  if (stage_end == 0 || number == cell.size() || number == stage_end) {
    return "";
  }
  return fmt::format("stage {}, micro-batch {}", cell.substr(0, stage_end), cell.substr(number));
}

// Both cells of "(0F7;3B2)OVERLAP_F_B".
std::string explain_pair(const std::string& action) {
  const std::size_t middle = action.find(';'), close = action.find(')');
  if (action.empty() || action[0] != '(' || middle == std::string::npos || close == std::string::npos ||
      close < middle) {
    return "";
  }
  const std::string first = explain_cell(action.substr(1, middle - 1));
  const std::string second = explain_cell(action.substr(middle + 1, close - middle - 1));
  return first.empty() || second.empty() ? "" : first + "; " + second;
}

}  // namespace

std::string explain_action(const std::string& action) {
  const std::string pair = explain_pair(action);
  const std::string meaning = pair.empty() ? explain_cell(action) : pair;
  return meaning.empty() ? action : fmt::format("{} ({})", action, meaning);
}

std::string to_text(const Failure& failure) {
  Json json = {{"code", static_cast<int>(failure.code)}, {"place", failure.place}, {"message", failure.message}};
  if (failure.rank) {
    json["rank"] = *failure.rank;
  }
  for (const ProcessIdentity& process : failure.stopped) {
    json["stopped"].push_back(to_text(process));
  }
  return dump(json);
}

Failure failure_from_text(const std::string& text) {
  const Json json = Json::parse(text);
  Failure failure{{}, static_cast<ExitCode>(json.at("code").get<int>()), json.at("place"), json.at("message")};
  if (json.contains("rank")) {
    failure.rank = json.at("rank").get<int>();
  }
  for (const std::string process : json.value("stopped", Json::array())) {
    failure.stopped.push_back(identity_from_text(process));
  }
  return failure;
}

std::string describe(const Failure& failure, int here, const std::string& own) {
  const bool says_more = !own.empty() && own != failure.message && failure.rank != here;
  const std::string more = says_more ? fmt::format(" (here: {})", own) : "";
  if (!failure.rank || (failure.rank == here && failure.place.empty())) {
    return failure.message + more;
  }
  const std::string place = failure.place.empty() ? "" : " in " + failure.place;
  return fmt::format("rank {} failed{}: {}{}", *failure.rank, place, failure.message, more);
}

ExitCode exit_code_for(const Failure& failure, int here) {
  const bool is_others = failure.code == ExitCode::kException && failure.rank != here;
  return is_others ? ExitCode::kPeerLost : failure.code;
}

}  // namespace pretrain_gpt
