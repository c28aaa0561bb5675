/* Addresses and sockets. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "example.h"

/* getaddrinfo() of "host:port" or "[v6]:port"; NULL: not an address, or an unknown host. */
static struct addrinfo* find_address(const char* address) {
  char host[256];
  const char* colon = strrchr(address, ':');
  if (colon == NULL || (size_t)(colon - address) >= sizeof(host)) return NULL;
  const size_t digits = strspn(colon + 1, "0123456789");
  if (digits == 0 || digits > 5 || colon[1 + digits] != '\0' || atoi(colon + 1) > 65535) return NULL;
  const int brackets = address[0] == '[' && colon[-1] == ']';
  snprintf(host, sizeof(host), "%.*s", (int)(colon - address) - 2 * brackets, address + brackets);
  struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  struct addrinfo* found = NULL;
  return host[0] != '\0' && getaddrinfo(host, colon + 1, &wanted, &found) == 0 ? found : NULL;
}

static int bad_address(const char* address, int* code, gradrail_transport_text* error) {
  *code = fail(error, GRADRAIL_TRANSPORT_INVALID_ARGUMENT, "'%.200s' is not host:port of a known host", address);
  return -1;
}

static int socket_failed(int fd, const char* doing, const char* address, int problem, int* code,
                         gradrail_transport_text* error) {
  if (fd >= 0) close(fd);
  *code =
      fail(error,
           problem == EADDRINUSE  ? GRADRAIL_TRANSPORT_ALREADY_EXISTS
           : problem == ETIMEDOUT ? GRADRAIL_TRANSPORT_DEADLINE_EXCEEDED
                                  : GRADRAIL_TRANSPORT_UNAVAILABLE,
           "%s %.200s: %s (%s)", doing, address, strerror(problem),
           strcmp(doing, "listen at") == 0 ? "choose a free port of this host, or 0" : "does the peer listen there?");
  return -1;
}

/* 0, or an errno. */
static int await_connected(int fd, uint64_t timeout_ns) {
  const uint64_t milliseconds = timeout_ns / 1000000;
  struct pollfd waiting = {.fd = fd, .events = POLLOUT};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, milliseconds > 60000 ? 60000 : (int)milliseconds);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return ETIMEDOUT;
  int problem = 0;
  socklen_t bytes = sizeof(problem);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &bytes);
  return problem;
}

/* The kernel may choose the port of a lost listener as the local port: TCP then connects a socket to itself. */
static int is_connected_to_itself(int fd) {
  char here[64], there[64];
  socket_address(fd, 0, here, sizeof(here));
  socket_address(fd, 1, there, sizeof(there));
  return strcmp(here, there) == 0;
}

static int bind_to_host(int fd, const char* host) {
  struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
  struct addrinfo* found = NULL;
  if (host[0] == '\0') return 0;
  if (getaddrinfo(host, "0", &wanted, &found) != 0) return EADDRNOTAVAIL;
  const int problem = bind(fd, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  freeaddrinfo(found);
  return problem;
}

int connect_socket(const char* address, const char* bind_host, uint64_t timeout_ns, int* code,
                   gradrail_transport_text* error) {
  struct addrinfo* target = find_address(address);
  if (target == NULL) return bad_address(address, code, error);
  const int fd = socket(target->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int problem = fd < 0 ? errno : bind_to_host(fd, bind_host);
  if (problem == 0 && connect(fd, target->ai_addr, target->ai_addrlen) != 0) problem = errno;
  freeaddrinfo(target);
  if (problem == EINPROGRESS) problem = await_connected(fd, timeout_ns);
  if (problem == 0 && is_connected_to_itself(fd)) problem = ECONNREFUSED;
  if (problem != 0) return socket_failed(fd, "connect to", address, problem, code, error);
  return fd;
}

int listen_socket(const char* address, int* code, gradrail_transport_text* error) {
  struct addrinfo* where = find_address(address);
  if (where == NULL) return bad_address(address, code, error);
  const int fd = socket(where->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const int failed = fd < 0 || bind(fd, where->ai_addr, where->ai_addrlen) != 0 || listen(fd, 1024) != 0;
  const int problem = failed ? errno : 0;
  freeaddrinfo(where);
  return failed ? socket_failed(fd, "listen at", address, problem, code, error) : fd;
}

void socket_address(int fd, int of_peer, char* text, size_t bytes) {
  struct sockaddr_storage storage = {0};
  struct sockaddr* address = (struct sockaddr*)&storage;
  socklen_t length = sizeof(storage);
  char host[46] = "?", port[6] = "?";
  if ((of_peer ? getpeername(fd, address, &length) : getsockname(fd, address, &length)) == 0) {
    getnameinfo(address, length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  }
  snprintf(text, bytes, storage.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}
