#include "examples/pretrain_gpt/sockets.h"

#include <arpa/inet.h>
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

// None where there is none.
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

std::optional<std::string> loopback_address(const std::string& host) {
  const std::string address = host == "localhost" ? "127.0.0.1" : host;
  in_addr number{};
  const bool is_address = ::inet_pton(AF_INET, address.c_str(), &number) == 1;
  return is_address && (ntohl(number.s_addr) >> 24) == IN_LOOPBACKNET ? std::optional(address) : std::nullopt;
}

Descriptor bind_to(const std::string& address, int port) {
  const Addresses found = addresses_of(address, port, AF_UNSPEC);
  Descriptor bound = found ? tcp_socket(found->ai_family, 0) : Descriptor();
  const int yes = 1;
  if (bound.get() < 0 || ::setsockopt(bound.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(bound.get(), found->ai_addr, found->ai_addrlen) != 0) {
    fail(fmt::format("port {} of {}", port, address));
  }
  return bound;
}

Descriptor connect_to(const std::string& host, int port, Clock::time_point end, Protocol protocol) {
  const Addresses addresses = addresses_of(host, port, protocol == Protocol::kIPv4 ? AF_INET : AF_INET6);
  errno = EHOSTUNREACH;
  for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next) {
    Descriptor socket = tcp_socket(to->ai_family, SOCK_NONBLOCK);
    if (socket.get() >= 0 && connects(socket.get(), *to, end)) {
      return socket;
    }
  }
  return Descriptor();
}

bool accepts_connections(const std::string& host, int port) {
  const auto by = [&](Protocol protocol) {
    return connect_to(host, port, Clock::now() + std::chrono::milliseconds(500), protocol).get() >= 0;
  };
  return by(Protocol::kIPv4) || by(Protocol::kIPv6);
}

void ask_names_briefly() { ::setenv("RES_OPTIONS", "timeout:1 attempts:1", /*overwrite=*/0); }

}  // namespace pretrain_gpt
