// examples/pretrain_gpt/sockets.h
//
// TCP as far as the trainer uses it itself: where the store listens, and the lines between ranks.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace pretrain_gpt {

// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return number_; }
  int release();

 private:
  int number_;
};

// Listens on a port that the kernel chooses, IPv4. Throws std::system_error where none is to be had.
Descriptor listen_on_any_port(bool loopback_only);

// The port that a socket is bound to. Throws std::system_error.
int port_of(const Descriptor& socket);

// The IPv4 loopback address that `host` stands for: itself, or 127.0.0.1 for localhost; else nothing.
std::optional<std::string> loopback_address(const std::string& host);

// Bound, not listening yet. Throws std::system_error where something listens there.
Descriptor bind_to(const std::string& address, int port);

// Over IPv4, or IPv6. No descriptor and errno where no connection came about before `end`.
enum class Protocol { kIPv4, kIPv6 };
Descriptor connect_to(const std::string& host, int port, std::chrono::steady_clock::time_point end,
                      Protocol protocol = Protocol::kIPv4);

// Whether something listens there, by connecting once.
bool accepts_connections(const std::string& host, int port);

// LibTorch asks for the name of whoever is at the other end of a store's connection, for its messages, and with a
// server of names that does not answer a run would wait for the resolver's ten seconds. One will do on one machine,
// where nothing else is asked for. Before the process has threads; a RES_OPTIONS of the user's stays.
void ask_names_briefly();

}  // namespace pretrain_gpt
