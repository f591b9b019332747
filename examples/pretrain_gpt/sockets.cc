#include "examples/pretrain_gpt/sockets.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <utility>

namespace pretrain_gpt {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

// None where there is none. `family` AF_UNSPEC for all.
Addresses addresses_of(const std::string& host, int port, int family) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_family = family;
  wanted.ai_socktype = SOCK_STREAM;
  const bool known = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) == 0;
  return {known ? found : nullptr, &::freeaddrinfo};
}

Descriptor tcp_socket(int family, int flags) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
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

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

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

Descriptor listen_on_any_port(bool loopback_only) {
  Descriptor listener = tcp_socket(AF_INET, SOCK_NONBLOCK);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
  if (listener.get() < 0 || ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    fail("a port for the lines between ranks");
  }
  return listener;
}

int port_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail("the port of a socket");
  }
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

// A store's clients try IPv6 first.
std::optional<Descriptor> bind_on_loopback(const std::string& host, int port) {
  for (const int family : {AF_INET6, AF_INET}) {
    const Addresses found = addresses_of(host, port, family);
    if (!found || !is_loopback(*found->ai_addr)) {
      continue;
    }
    Descriptor bound = tcp_socket(family, 0);
    const int yes = 1;
    if (bound.get() >= 0 && ::setsockopt(bound.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        ::bind(bound.get(), found->ai_addr, found->ai_addrlen) == 0) {
      return bound;
    }
    if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) {
      fail(fmt::format("port {}", port));
    }
  }
  return std::nullopt;
}

Descriptor connect_to(const std::string& host, int port, Clock::time_point end) {
  errno = EHOSTUNREACH;
  const Addresses addresses = addresses_of(host, port, AF_UNSPEC);
  for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next) {
    Descriptor socket = tcp_socket(to->ai_family, SOCK_NONBLOCK);
    if (socket.get() >= 0 && connects(socket.get(), *to, end)) {
      return socket;
    }
  }
  return Descriptor();
}

bool accepts_connections(const std::string& host, int port) {
  return connect_to(host, port, Clock::now() + std::chrono::milliseconds(500)).get() >= 0;
}

void ask_names_briefly() { ::setenv("RES_OPTIONS", "timeout:1", /*overwrite=*/0); }

}  // namespace pretrain_gpt
