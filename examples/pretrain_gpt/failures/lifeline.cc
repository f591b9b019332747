#include "examples/pretrain_gpt/failures/lifeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

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

Descriptor listen_on_any_port(bool loopback_only) {
  Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
  if (listener.get() < 0 || ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    fail("a port for the lines between ranks");
  }
  return listener;
}

bool connects(int socket, const addrinfo& to, Clock::time_point end) {
  if (::connect(socket, to.ai_addr, to.ai_addrlen) == 0) {
    return true;
  }
  if (errno != EINPROGRESS) {
    return false;
  }
  pollfd ready{socket, POLLOUT, 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  int error = ETIMEDOUT;
  socklen_t length = sizeof error;
  const bool answered = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(0, left))) > 0;
  const bool known = answered && ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0;
  errno = error;
  return known && error == 0;
}

Descriptor connect_to(const std::string& host, int port, Clock::time_point end) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) {
    errno = EHOSTUNREACH;
    return Descriptor();
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    Descriptor socket(::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() >= 0 && connects(socket.get(), *to, end)) {
      return socket;
    }
  }
  return Descriptor();
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

Descriptor::~Descriptor() {
  if (number_ >= 0) {
    ::close(number_);
  }
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

int Descriptor::release() { return std::exchange(number_, -1); }

LifelineHub::LifelineHub(int world_size, bool loopback_only, std::string greeting)
    : world_size_(world_size), greeting_(std::move(greeting)), listener_(listen_on_any_port(loopback_only)) {}

int LifelineHub::port() const {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail("the port of the lines between ranks");
  }
  return ntohs(address.sin_port);
}

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

bool accepts_connections(const std::string& host, int port) {
  return connect_to(host, port, Clock::now() + std::chrono::milliseconds(500)).get() >= 0;
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
