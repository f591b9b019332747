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

// Bound to `port` of the loopback address that `host` is, not listening yet; nothing where it is none. Throws
// std::system_error where the port is taken.
std::optional<Descriptor> bind_on_loopback(const std::string& host, int port);

// A connection, or no descriptor and errno where none came about before `end`.
Descriptor connect_to(const std::string& host, int port, std::chrono::steady_clock::time_point end);

// Whether something listens there, by connecting once.
bool accepts_connections(const std::string& host, int port);

// LibTorch asks for the name of whoever is at the other end of a store's connection, for its messages, and a server
// of names that loses a question would hold up the store for the resolver's five seconds: a second will do. Before the
// process has threads; a RES_OPTIONS of the user's stays.
void ask_names_briefly();

}  // namespace pretrain_gpt
