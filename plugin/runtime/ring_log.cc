#include "plugin/runtime/ring_log.h"

#include <chrono>
#include <exception>
#include <fstream>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

const char* name_of(RingKind kind) {
  static constexpr const char* kNames[] = {"compute", "send", "receive", "collective"};
  return kNames[static_cast<int>(kind)];
}

// Text from anywhere: what is no UTF-8 is replaced.
std::string line_of(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

nlohmann::ordered_json to_json(const RingEntry& entry) {
  nlohmann::ordered_json json = {{"kind", name_of(entry.kind)}, {"action", entry.action}};
  if (entry.peer) json["peer"] = *entry.peer;
  if (entry.kind == RingKind::kSend || entry.kind == RingKind::kReceive) json["bytes"] = entry.bytes;
  json["posted"] = entry.posted;
  if (entry.started) json["started"] = *entry.started;
  if (entry.done) json["done"] = *entry.done;
  return json;
}

void add_failure(nlohmann::ordered_json& header, const std::string& failure) {
  const auto given = nlohmann::ordered_json::parse(failure, nullptr, /*allow_exceptions=*/false);
  if (!given.is_object()) return;
  for (const auto& [from, to] : {std::pair("rank", "failed_rank"), {"place", "failed_place"}, {"message", "failure"}}) {
    if (given.contains(from)) header[to] = given[from];
  }
}

}  // namespace

RingLog::RingLog(int rank, int world_size, std::vector<int> numbers, std::size_t capacity)
    : rank_(rank), world_size_(world_size), numbers_(std::move(numbers)), capacity_(capacity) {
  check(capacity > 0, "a ring log has room for an entry");
}

RingEntry* RingLog::find(Id id) {
  return id >= first_ && id - first_ < entries_.size() ? &entries_[id - first_] : nullptr;
}

RingLog::Id RingLog::post(RingKind kind, std::string action, std::optional<int> peer, std::int64_t bytes) {
  if (peer && !numbers_.empty()) peer = numbers_.at(*peer);
  RingEntry entry{kind, std::move(action), peer, bytes, now(), {}, {}};
  std::lock_guard lock(mutex_);
  if (entries_.size() == capacity_) {
    entries_.pop_front();
    ++first_;
  }
  entries_.push_back(std::move(entry));
  ++changes_;
  return first_ + entries_.size() - 1;
}

void RingLog::set_bytes(Id id, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (RingEntry* entry = find(id)) entry->bytes = bytes;
}

void RingLog::start(Id id) {
  const double time = now();
  std::lock_guard lock(mutex_);
  RingEntry* entry = find(id);
  if (entry == nullptr) return;
  entry->started = time;
  open_.push_back(id);
  ++changes_;
}

void RingLog::done(Id id) {
  const double time = now();
  std::lock_guard lock(mutex_);
  if (RingEntry* entry = find(id)) entry->done = time;
  std::erase(open_, id);
  ++changes_;
}

RingLog::Id RingLog::begin(RingKind kind, std::string action) {
  const Id id = post(kind, std::move(action));
  start(id);
  return id;
}

std::vector<RingEntry> RingLog::entries() const {
  std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

RingStanding RingLog::standing() const {
  std::lock_guard lock(mutex_);
  RingStanding standing;
  standing.changes = changes_;
  if (open_.empty() || open_.back() < first_) return standing;
  const RingEntry& entry = entries_[open_.back() - first_];
  standing.action = entry.action;
  standing.waits = entry.kind != RingKind::kCompute;
  standing.peer = entry.peer;
  return standing;
}

bool RingLog::write(const std::filesystem::path& folder, const std::string& failure) const noexcept {
  try {
    nlohmann::ordered_json header = {
        {"format", "dualpipe-ring"}, {"version", 1}, {"rank", rank_}, {"world_size", world_size_}, {"written", now()}};
    add_failure(header, failure);
    std::ofstream file(folder / ("ring_rank" + std::to_string(rank_) + ".jsonl"));
    file << line_of(header);
    for (const RingEntry& entry : entries()) file << line_of(to_json(entry));
    return static_cast<bool>(file.flush());
  } catch (const std::exception&) {
    return false;
  }
}

std::string failure_json(int rank, const std::string& action, const std::string& cause) {
  std::string line = line_of({{"rank", rank}, {"place", action}, {"message", cause}});
  line.pop_back();
  return line;
}

RingScope::RingScope(RingLog& log, RingKind kind, std::string action)
    : log_(log), id_(log.begin(kind, std::move(action))), exceptions_(std::uncaught_exceptions()) {}

RingScope::~RingScope() {
  if (std::uncaught_exceptions() == exceptions_) log_.done(id_);
}

}  // namespace dualpipe
