/* The table of the plug-in, and its contexts. */
#define _GNU_SOURCE
#include "gradrail/transport.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "example.h"

int fail(gradrail_transport_text* error, int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->text, sizeof(error->text), format, arguments);
  va_end(arguments);
  return code;
}

static const char* library(void) { return "an example in C over sockets"; }

static int open_context(const gradrail_transport_options* options, gradrail_transport_context** opened,
                        gradrail_transport_text* error) {
  gradrail_transport_context* context = calloc(1, sizeof(*context));
  if (context == NULL) return fail(error, GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED, "no memory for a context");
  context->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (context->epoll < 0) {
    free(context);
    return fail(error, GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED, "epoll_create1: %s (raise `ulimit -n`)", strerror(errno));
  }
  context->listener = -1;
  context->log = options->log;
  snprintf(context->bind_host, sizeof(context->bind_host), "%s", options->bind_host);
  *opened = context;
  return GRADRAIL_TRANSPORT_OK;
}

static void remove_connection(gradrail_transport_context* context, gradrail_transport_connection* connection) {
  gradrail_transport_connection** place = &context->connections;
  while (*place != connection) place = &(*place)->next;
  *place = connection->next;
  free_connection(connection);
}

static void close_context(gradrail_transport_context* context) {
  char text[200];
  snprintf(text, sizeof(text), "example: %llu puts of %llu bytes, %llu gets, %llu messages",
           (unsigned long long)context->puts, (unsigned long long)context->put_bytes, (unsigned long long)context->gets,
           (unsigned long long)context->messages);
  context->log(GRADRAIL_TRANSPORT_LOG_INFO, text);
  while (context->connections != NULL) remove_connection(context, context->connections); /* those without a hello */
  if (context->listener >= 0) close(context->listener);
  close(context->epoll);
  free(context);
}

static void capabilities(const gradrail_transport_context* context, gradrail_transport_capabilities* result) {
  (void)context;
  result->max_message_bytes = MESSAGE_BYTES;
  result->immediate_bits = 64;
  result->ordered_puts = 1;
}

static void watch_listener(gradrail_transport_context* context) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}; /* connections have their address there */
  epoll_ctl(context->epoll, EPOLL_CTL_ADD, context->listener, &event);
}

static int listen_at(gradrail_transport_context* context, const char* address, gradrail_transport_text* bound,
                     gradrail_transport_text* error) {
  int code = GRADRAIL_TRANSPORT_OK;
  context->listener = listen_socket(address, &code, error);
  if (context->listener < 0) return code;
  watch_listener(context);
  socket_address(context->listener, 0, bound->text, sizeof(bound->text));
  return GRADRAIL_TRANSPORT_OK;
}

static int connect_to(gradrail_transport_context* context, const char* address, uint64_t timeout_ns,
                      gradrail_transport_connection** connection, gradrail_transport_text* error) {
  int code = GRADRAIL_TRANSPORT_OK;
  const int fd = connect_socket(address, context->bind_host, timeout_ns, &code, error);
  if (fd < 0) return code;
  *connection = new_connection(context, fd, 0);
  if (*connection != NULL) {
    flush(*connection); /* the hello: the peer reports the connection although this side does not poll */
    return GRADRAIL_TRANSPORT_OK;
  }
  close(fd);
  return fail(error, GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED, "connect to %.200s: no memory", address);
}

static void disconnect(gradrail_transport_context* context, gradrail_transport_connection* connection) {
  flush(connection);
  remove_connection(context, connection);
  if (!context->accept_paused) return;
  context->accept_paused = 0;
  watch_listener(context);
}

static void accept_some(gradrail_transport_context* context) {
  for (int i = 0; i < BATCH; ++i) {
    const int fd = accept4(context->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      if (new_connection(context, fd, 1) == NULL) close(fd);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE) {
      /* The listener stays readable: without this call, a wait would become a busy loop. */
      context->log(GRADRAIL_TRANSPORT_LOG_WARN, "example: cannot accept a connection (raise `ulimit -n`)");
      epoll_ctl(context->epoll, EPOLL_CTL_DEL, context->listener, NULL);
      context->accept_paused = 1;
    }
    return;
  }
}

static void handle(gradrail_transport_context* context, const struct epoll_event* event, struct batch* batch) {
  gradrail_transport_connection* connection = event->data.ptr;
  if (connection == NULL) {
    accept_some(context);
    return;
  }
  if ((event->events & EPOLLOUT) != 0) unblock(connection);
  receive(connection, batch);
}

static size_t poll_context(gradrail_transport_context* context, gradrail_transport_completion* completions,
                           size_t capacity) {
  struct batch batch = {.entries = completions, .capacity = capacity < BATCH ? capacity : BATCH};
  for (gradrail_transport_connection* each = context->connections; each != NULL; each = each->next) flush(each);
  struct epoll_event events[BATCH];
  const int count = epoll_wait(context->epoll, events, BATCH, 0);
  for (int i = 0; i < count; ++i) handle(context, &events[i], &batch);
  for (gradrail_transport_connection *each = context->connections, *next = NULL; each != NULL; each = next) {
    next = each->next;
    report(each, &batch);
    if (each->state == LOST && !each->announced) remove_connection(context, each); /* never announced to its owner */
  }
  return batch.count;
}

static int wait_fd(const gradrail_transport_context* context) { return context->epoll; }

static int arm(gradrail_transport_context* context) {
  for (gradrail_transport_connection* each = context->connections; each != NULL; each = each->next) {
    if (has_work(each)) return 0;
  }
  return 1;
}

const gradrail_transport_table gradrail_transport_v1 = {
    .table_bytes = sizeof(gradrail_transport_table),
    .library = library,
    .open = open_context,
    .close = close_context,
    .capabilities = capabilities,
    .register_memory = register_memory,
    .deregister_memory = deregister_memory,
    .listen = listen_at,
    .connect = connect_to,
    .disconnect = disconnect,
    .import_region = import_region,
    .put = put,
    .get = get,
    .send = send_message,
    .describe = describe,
    .poll = poll_context,
    .wait_fd = wait_fd,
    .arm = arm,
};
