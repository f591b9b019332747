#include "examples/pretrain_gpt/failures/lifeline.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

namespace pretrain_gpt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kGreetingPatience{5};
constexpr std::size_t kMostGuests = 64;          // That have not greeted.
constexpr std::size_t kLongestWords = 1U << 20;  // A failure's text is far shorter.
constexpr const char* kFarewell = "bye\n";

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

struct Heard {
  std::string text;
  bool closed = false;
};

// What is there, without waiting.
Heard hear(int socket) {
  Heard heard;
  std::array<char, 4096> buffer{};
  while (heard.text.size() < kLongestWords) {
    const ssize_t length = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (length < 0 && errno == EINTR) {
      continue;
    }
    if (length <= 0) {
      heard.closed = length == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
      return heard;
    }
    heard.text.append(buffer.data(), static_cast<std::size_t>(length));
  }
  return heard;
}

// As much as the socket takes at once: a line that is full has a reader that does not read.
void say(int socket, const std::string& text) {
  (void)::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

class LifelineEnd : public Lifeline {
 public:
  explicit LifelineEnd(Descriptor socket) : socket_(std::move(socket)) {}

  void add_to(std::vector<int>& descriptors) const override {
    if (!closed_) {
      descriptors.push_back(socket_.get());
    }
  }

  LifelineNews news() override {
    LifelineNews news;
    if (closed_) {
      return news;
    }
    const Heard heard = hear(socket_.get());
    said_ += heard.text;
    closed_ = heard.closed;
    const bool bids_farewell = said_ == kFarewell;
    news.farewell = bids_farewell;
    if (!bids_farewell && said_.ends_with('\n')) {
      news.words = said_.substr(0, said_.size() - 1);
    }
    if (closed_ && !bids_farewell && !parting_) {
      news.lost.push_back(0);
    }
    return news;
  }

  void tell_all(const std::string& /*words*/) override {}

  void say_farewell() override {
    parting_ = true;
    say(socket_.get(), kFarewell);
  }

  bool reaches_all() const override { return false; }

 private:
  Descriptor socket_;
  std::string said_;
  bool closed_ = false, parting_ = false;
};

}  // namespace

LifelineHub::LifelineHub(int world_size, bool loopback_only, std::string greeting)
    : world_size_(world_size), greeting_(std::move(greeting)), listener_(listen_on_any_port(loopback_only)) {}

int LifelineHub::port() const { return port_of(listener_); }

void LifelineHub::add_to(std::vector<int>& descriptors) const {
  descriptors.push_back(listener_.get());
  for (const Guest& guest : guests_) {
    descriptors.push_back(guest.socket.get());
  }
  for (const auto& [rank, line] : ranks_) {
    descriptors.push_back(line.socket.get());
  }
}

void LifelineHub::accept_guests() {
  while (guests_.size() < kMostGuests) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      return;
    }
    guests_.push_back({std::move(socket), "", Clock::now()});
  }
}

// "<greeting> <rank>\n"
bool LifelineHub::greet(Guest& guest) {
  const Heard heard = hear(guest.socket.get());
  guest.said += heard.text;
  const std::size_t end = guest.said.find('\n');
  if (end == std::string::npos) {
    return heard.closed || guest.said.size() > kLongestWords || Clock::now() - guest.since > kGreetingPatience;
  }
  for (int rank = 1; rank < world_size_; ++rank) {
    if (!ranks_.contains(rank) && guest.said.substr(0, end) == fmt::format("{} {}", greeting_, rank)) {
      guest.said.erase(0, end + 1);
      ranks_.emplace(rank, std::move(guest));
      break;
    }
  }
  return true;
}

void LifelineHub::hear_guests() {
  guests_.erase(std::remove_if(guests_.begin(), guests_.end(), [this](Guest& guest) { return greet(guest); }),
                guests_.end());
}

bool LifelineHub::has_ended(int rank, Guest& line, LifelineNews& news) {
  const Heard heard = hear(line.socket.get());
  line.said += heard.text;
  if (heard.closed && line.said != kFarewell && !parting_) {
    news.lost.push_back(rank);
  }
  return heard.closed;
}

LifelineNews LifelineHub::news() {
  accept_guests();
  hear_guests();
  LifelineNews news;
  for (auto line = ranks_.begin(); line != ranks_.end();) {
    const bool ended = has_ended(line->first, line->second, news);
    ended_ += ended ? 1 : 0;
    line = ended ? ranks_.erase(line) : std::next(line);
  }
  return news;
}

void LifelineHub::tell_all(const std::string& words) {
  for (const auto& [rank, line] : ranks_) {
    say(line.socket.get(), words + '\n');
  }
}

void LifelineHub::say_farewell() {
  parting_ = true;
  tell_all(std::string(kFarewell, 3));
}

std::unique_ptr<Lifeline> connect_lifeline(const std::vector<std::string>& hosts, int port, int rank,
                                           const std::string& greeting, std::chrono::milliseconds timeout) {
  const Clock::time_point end = Clock::now() + timeout;
  for (const std::string& host : hosts) {
    Descriptor socket = connect_to(host, port, end);
    if (socket.get() >= 0) {
      say(socket.get(), fmt::format("{} {}\n", greeting, rank));
      return std::make_unique<LifelineEnd>(std::move(socket));
    }
  }
  fail("the line to rank 0");
}

}  // namespace pretrain_gpt
