#include "plugin/runtime/store_failure_channel.h"

#include <condition_variable>
#include <cstdint>
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

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookPatience{1000};
constexpr std::chrono::milliseconds kRecordPatience{3000};

FailureRecord offer(c10d::Store& store, const FailureRecord& failure) {
  try {
    return decode(store.compareSet(kKey, "", encode(failure)));
  } catch (const std::exception&) {
    return failure;  // Nobody else can be told.
  }
}

std::optional<FailureRecord> look(c10d::Store& store) {
  try {
    if (store.check({kKey})) return decode(store.get_to_str(kKey));
    return std::nullopt;
  } catch (const c10::Error&) {
    return FailureRecord{0, "the store", "the store is lost (it lives in rank 0)"};
  } catch (const std::exception& error) {
    return FailureRecord{0, "the store", std::string("a failure was recorded that cannot be read: ") + error.what()};
  }
}

// What callers want of the store, and a thread that asks it. That thread may be stuck in the store for ever, where its
// host is stopped: callers wait for an answer as long as their patience lasts, and it outlives the channel then.
struct Questions {
  explicit Questions(c10::intrusive_ptr<c10d::Store> store) : store(std::move(store)) {}

  // What the next round trips are to answer; `offered`, where there is one, goes with it.
  std::uint64_t ask() {
    if (answered == asked) since = Clock::now();
    changed.notify_all();
    return ++asked;
  }

  // Until question `number` is answered, or there is a record, or it is too late.
  void wait(std::unique_lock<std::mutex>& lock, std::uint64_t number, Clock::time_point end) {
    changed.wait_until(lock, end, [&] { return known || answered >= number; });
  }

  const c10::intrusive_ptr<c10d::Store> store;
  std::mutex mutex;  // Guards what follows; held over no round trip.
  std::condition_variable changed;
  std::optional<FailureRecord> known, offered;
  std::uint64_t asked = 0, answered = 0;
  Clock::time_point since;  // When the question that is being answered was put.
  bool closed = false, ended = false;
};

void answer(Questions& questions) {
  std::unique_lock lock(questions.mutex);
  while (true) {
    questions.changed.wait(lock, [&] { return questions.closed || questions.answered < questions.asked; });
    if (questions.closed) break;
    const std::uint64_t number = questions.asked;
    const auto offered = std::exchange(questions.offered, std::nullopt);
    lock.unlock();
    const auto record = offered ? offer(*questions.store, *offered) : look(*questions.store);
    lock.lock();
    if (!questions.known) questions.known = record;
    questions.answered = number;
    questions.since = Clock::now();
    questions.changed.notify_all();
  }
  questions.ended = true;
  questions.changed.notify_all();
}

class StoreFailureChannel : public FailureChannel {
 public:
  explicit StoreFailureChannel(c10::intrusive_ptr<c10d::Store> store)
      : questions_(std::make_shared<Questions>(std::move(store))),
        thread_([questions = questions_] { answer(*questions); }) {}

  ~StoreFailureChannel() override {
    std::unique_lock lock(questions_->mutex);
    questions_->closed = true;
    questions_->changed.notify_all();
    const bool ended = questions_->changed.wait_for(lock, kLookPatience, [this] { return questions_->ended; });
    lock.unlock();
    ended ? thread_.join() : thread_.detach();
  }

  FailureRecord record(const FailureRecord& failure) override {
    std::unique_lock lock(questions_->mutex);
    if (!questions_->known) {
      if (!questions_->offered) questions_->offered = failure;
      questions_->wait(lock, questions_->ask(), Clock::now() + kRecordPatience);
    }
    if (!questions_->known) questions_->known = failure;
    return *questions_->known;
  }

  // A store that is stuck is waited for once; from then on there is no answer until there is one.
  std::optional<FailureRecord> first() override {
    std::unique_lock lock(questions_->mutex);
    if (!questions_->known) {
      const bool is_asked = questions_->answered < questions_->asked;
      const std::uint64_t number = is_asked ? questions_->asked : questions_->ask();
      questions_->wait(lock, number, questions_->since + kLookPatience);
    }
    return questions_->known;
  }

 private:
  std::shared_ptr<Questions> questions_;
  std::thread thread_;
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
