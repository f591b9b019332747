#include "examples/pretrain_gpt/sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
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

TEST(Sockets, LoopbackByName) {
  EXPECT_EQ(loopback_address("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(loopback_address("127.1.2.3"), "127.1.2.3");
  EXPECT_EQ(loopback_address("localhost"), "127.0.0.1");
  for (const char* other : {"192.0.2.1", "::1", "node0", "localhost.example", "127.0.0.1.example", "1270.0.0.1", ""}) {
    EXPECT_EQ(loopback_address(other), std::nullopt) << other;
  }
}

TEST(Sockets, WhoListensIsConnectedTo) {
  const Descriptor bound = bind_to("127.0.0.2", 0);
  EXPECT_EQ(address_of(bound), "127.0.0.2");
  EXPECT_FALSE(accepts_connections("127.0.0.2", port_of(bound)));  // Bound alone.
  ASSERT_EQ(::listen(bound.get(), 1), 0);
  EXPECT_TRUE(accepts_connections("127.0.0.2", port_of(bound)));
}

TEST(Sockets, ATakenPortIsAnError) {
  const Descriptor taken = listen_on_any_port(/*loopback_only=*/true);
  EXPECT_THROW(bind_to("127.0.0.1", port_of(taken)), std::system_error);
}

TEST(Sockets, ABrokenConnectionSaysWhy) {
  const Descriptor bound = bind_to("127.0.0.1", 0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  EXPECT_LT(connect_to("127.0.0.1", port_of(bound), end).get(), 0);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(Sockets, TheUsersResolverStays) {
  const char* given = std::getenv("RES_OPTIONS");
  const std::string before = given != nullptr ? given : "";
  ::unsetenv("RES_OPTIONS");
  ask_names_briefly();
  EXPECT_STREQ(std::getenv("RES_OPTIONS"), "timeout:1 attempts:1");
  ::setenv("RES_OPTIONS", "ndots:2", 1);
  ask_names_briefly();
  EXPECT_STREQ(std::getenv("RES_OPTIONS"), "ndots:2");
  ::setenv("RES_OPTIONS", before.c_str(), 1);
}

}  // namespace
}  // namespace pretrain_gpt
