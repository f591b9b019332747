#include "plugin/runtime/store_failure_channel.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr const char* kKey = "dualpipe/failure";

// Fields end with a line feed; those in them and backslashes are escaped.
std::string escape(const std::string& field) {
  std::string result;
  for (const char c : field) {
    if (c == '\n') {
      result += "\\n";
    } else if (c == '\\') {
      result += "\\\\";
    } else {
      result += c;
    }
  }
  return result + '\n';
}

std::vector<std::string> unescape_fields(const std::string& text) {
  std::vector<std::string> fields;
  std::string field;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') {
      fields.push_back(std::exchange(field, {}));
    } else if (text[i] == '\\') {
      ++i;
      field += text.at(i) == 'n' ? '\n' : text[i];
    } else {
      field += text[i];
    }
  }
  return fields;
}

std::string encode(const FailureRecord& record) {
  return escape(std::to_string(record.rank)) + escape(record.action) + escape(record.cause);
}

FailureRecord decode(const std::string& text) {
  const std::vector<std::string> fields = unescape_fields(text);
  check(fields.size() == 3, "a failure record has three fields");
  return {std::stoi(fields[0]), fields[1], fields[2]};
}

class StoreFailureChannel : public FailureChannel {
 public:
  explicit StoreFailureChannel(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  FailureRecord record(const FailureRecord& failure) override {
    std::lock_guard lock(mutex_);
    if (!known_) {
      try {
        known_ = decode(store_->compareSet(kKey, "", encode(failure)));
      } catch (const c10::Error&) {
        known_ = failure;  // Nobody else can be told.
      }
    }
    return *known_;
  }

  std::optional<FailureRecord> first() override {
    std::lock_guard lock(mutex_);
    if (!known_) {
      known_ = read();
    }
    return known_;
  }

 private:
  std::optional<FailureRecord> read() {
    try {
      if (store_->check({kKey})) {
        return decode(store_->get_to_str(kKey));
      }
      return std::nullopt;
    } catch (const c10::Error&) {
      return FailureRecord{0, "the store", "the store is lost (it lives in rank 0)"};
    }
  }

  std::mutex mutex_;  // Guards what follows.
  c10::intrusive_ptr<c10d::Store> store_;
  std::optional<FailureRecord> known_;
};

}  // namespace

std::shared_ptr<FailureChannel> make_store_failure_channel(c10::intrusive_ptr<c10d::Store> store) {
  return std::make_shared<StoreFailureChannel>(std::move(store));
}

struct Watchdog::State {
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  std::thread thread;
};

Watchdog::Watchdog(std::shared_ptr<FailureChannel> channel, std::function<void(const FailureRecord&)> on_failure,
                   std::chrono::milliseconds interval)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.thread = std::thread([&state, channel = std::move(channel), on_failure = std::move(on_failure), interval] {
    std::unique_lock lock(state.mutex);
    while (!state.wake.wait_for(lock, interval, [&] { return state.stop; })) {
      lock.unlock();
      if (const auto record = channel->first()) {
        return on_failure(*record);
      }
      lock.lock();
    }
  });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  state_->thread.join();
}

}  // namespace dualpipe
