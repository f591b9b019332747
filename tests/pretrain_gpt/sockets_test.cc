#include "examples/pretrain_gpt/sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <system_error>

namespace pretrain_gpt {
namespace {

std::string address_of(const Descriptor& socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  std::array<char, INET_ADDRSTRLEN> text{};
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  EXPECT_EQ(address.sin_family, AF_INET);
  return ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
}

TEST(Sockets, LoopbackIsBoundAsItIsNamed) {
  for (const std::string host : {"127.0.0.1", "127.0.0.2"}) {
    const auto bound = bind_on_loopback(host, 0);
    ASSERT_TRUE(bound.has_value()) << host;
    EXPECT_EQ(address_of(*bound), host);
  }
}

TEST(Sockets, OtherAddressesAreLeftAlone) {
  EXPECT_FALSE(bind_on_loopback("192.0.2.1", 0).has_value());
  EXPECT_FALSE(bind_on_loopback("2001:db8::1", 0).has_value());
  EXPECT_FALSE(bind_on_loopback("no.such.host.invalid", 0).has_value());
}

TEST(Sockets, ATakenPortIsAnError) {
  const Descriptor taken = listen_on_any_port(/*loopback_only=*/true);
  EXPECT_THROW(bind_on_loopback("127.0.0.1", port_of(taken)), std::system_error);
}

TEST(Sockets, WhoListensIsConnectedTo) {
  auto bound = bind_on_loopback("127.0.0.1", 0);
  ASSERT_TRUE(bound.has_value());
  EXPECT_FALSE(accepts_connections("127.0.0.1", port_of(*bound)));  // Bound alone.
  ASSERT_EQ(::listen(bound->get(), 1), 0);
  EXPECT_TRUE(accepts_connections("127.0.0.1", port_of(*bound)));
}

TEST(Sockets, IPv6Too) {
  auto bound = bind_on_loopback("::1", 0);
  if (!bound) GTEST_SKIP() << "this machine has no IPv6";
  ASSERT_EQ(::listen(bound->get(), 1), 0);
  EXPECT_TRUE(accepts_connections("::1", port_of(*bound)));
}

}  // namespace
}  // namespace pretrain_gpt
