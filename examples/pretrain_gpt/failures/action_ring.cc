#include "examples/pretrain_gpt/failures/action_ring.h"

#include <array>
#include <chrono>
#include <exception>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

namespace pretrain_gpt {
namespace {

using Json = nlohmann::ordered_json;

double unix_now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n'; }

const char* name_of(ActionKind kind) {
  constexpr std::array<const char*, 4> kNames{"compute", "send", "receive", "collective"};
  return kNames.at(static_cast<std::size_t>(kind));
}

void add_failure(Json& header, const std::string& failure) {
  const Json given = Json::parse(failure, nullptr, /*allow_exceptions=*/false);
  for (const auto& [from, to] : {std::pair("rank", "failed_rank"), {"place", "failed_place"}, {"message", "failure"}}) {
    if (given.is_object() && given.contains(from)) {
      header[to] = given[from];
    }
  }
}

bool is_message(ActionKind kind) { return kind == ActionKind::kSend || kind == ActionKind::kReceive; }

}  // namespace

ActionRing::ActionRing(int rank, int world_size, std::size_t capacity)
    : rank_(rank), world_size_(world_size), capacity_(capacity) {}

ActionRing::Entry* ActionRing::find(Id id) {
  return id >= first_ && id - first_ < entries_.size() ? &entries_[id - first_] : nullptr;
}

ActionRing::Id ActionRing::post(ActionKind kind, std::string action, std::optional<int> peer, std::int64_t bytes) {
  Entry entry{kind, std::move(action), peer, bytes, unix_now(), {}, {}};
  const std::lock_guard lock(mutex_);
  if (entries_.size() == capacity_) {
    entries_.pop_front();
    ++first_;
  }
  entries_.push_back(std::move(entry));
  ++changes_;
  return first_ + entries_.size() - 1;
}

void ActionRing::start(Id id) {
  const double time = unix_now();
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(id)) {
    entry->started = time;
    open_.push_back(id);
  }
  ++changes_;
}

void ActionRing::done(Id id) {
  const double time = unix_now();
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(id)) {
    entry->done = time;
  }
  std::erase(open_, id);
  ++changes_;
}

ActionRing::Id ActionRing::begin(ActionKind kind, std::string action) {
  const Id id = post(kind, std::move(action));
  start(id);
  return id;
}

Activity ActionRing::now() const {
  const std::lock_guard lock(mutex_);
  if (open_.empty() || open_.back() < first_) {
    return {"", false, {}, changes_};
  }
  const Entry& entry = entries_[open_.back() - first_];
  return {entry.action, entry.kind != ActionKind::kCompute, entry.peer, changes_};
}

std::string ActionRing::line_of(const Entry& entry) {
  Json json = {{"kind", name_of(entry.kind)}, {"action", entry.action}};
  if (entry.peer) {
    json["peer"] = *entry.peer;
  }
  if (is_message(entry.kind)) {
    json["bytes"] = entry.bytes;
  }
  json["posted"] = entry.posted;
  if (entry.started) {
    json["started"] = *entry.started;
  }
  if (entry.done) {
    json["done"] = *entry.done;
  }
  return dump(json);
}

std::string ActionRing::text(const std::string& failure) const {
  Json header = {{"format", "dualpipe-ring"},
                 {"version", 1},
                 {"rank", rank_},
                 {"world_size", world_size_},
                 {"written", unix_now()}};
  add_failure(header, failure);
  std::string lines = dump(header);
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    lines += line_of(entry);
  }
  return lines;
}

void ActionRing::write(const std::filesystem::path& folder, const std::string& failure) const noexcept {
  try {
    std::ofstream(folder / ("ring_rank" + std::to_string(rank_) + ".jsonl")) << text(failure);
  } catch (const std::exception&) {
    return;  // The process ends by a failure already.
  }
}

CollectiveScope::CollectiveScope(ActionRing& ring, std::string what)
    : ring_(ring), id_(ring.begin(ActionKind::kCollective, std::move(what))), exceptions_(std::uncaught_exceptions()) {}

CollectiveScope::~CollectiveScope() {
  if (std::uncaught_exceptions() == exceptions_) {
    ring_.done(id_);
  }
}

}  // namespace pretrain_gpt
