/* The frames of one connection. No call blocks; only receive() and report() write completions. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "example.h"

static void watch(gradrail_transport_connection* connection, int operation) {
  struct epoll_event event = {.events = EPOLLIN | (connection->blocked ? EPOLLOUT : 0), .data.ptr = connection};
  epoll_ctl(connection->context->epoll, operation, connection->fd, &event);
}

static struct outgoing* push(gradrail_transport_connection* connection, uint32_t type) {
  struct outgoing* added = &connection->queue.frames[connection->queue.end++ % QUEUE_LENGTH];
  *added = (struct outgoing){.frame.type = type};
  if (type != GET_ANSWER) ++connection->queue.posts;
  return added;
}

gradrail_transport_connection* new_connection(gradrail_transport_context* context, int fd, int accepted) {
  gradrail_transport_connection* connection = calloc(1, sizeof(*connection));
  if (connection == NULL) return NULL;
  connection->context = context;
  connection->fd = fd;
  connection->announced = !accepted;
  connection->state = accepted ? WAITS_FOR_HELLO : OPEN;
  connection->next = context->connections;
  context->connections = connection;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  char here[64], there[64];
  socket_address(fd, 0, here, sizeof(here));
  socket_address(fd, 1, there, sizeof(there));
  snprintf(connection->ends, sizeof(connection->ends), "%s > %s", here, there);
  watch(connection, EPOLL_CTL_ADD);
  if (!accepted) push(connection, HELLO)->frame.immediate = HELLO_NUMBER;
  return connection;
}

void free_connection(gradrail_transport_connection* connection) {
  for (uint64_t i = connection->queue.first; i < connection->queue.end; ++i) {
    free(connection->queue.frames[i % QUEUE_LENGTH].copy);
  }
  if (connection->fd >= 0) close(connection->fd);
  free(connection->imported);
  free(connection);
}

__attribute__((format(printf, 3, 4))) static void lose(gradrail_transport_connection* connection, int cause,
                                                       const char* format, ...) {
  if (connection->state == LOST) return;
  connection->state = LOST;
  connection->cause = cause;
  const int used = snprintf(connection->cause_text, sizeof(connection->cause_text), "%s: ", connection->ends);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(connection->cause_text + used, sizeof(connection->cause_text) - (size_t)used, format, arguments);
  va_end(arguments);
  close(connection->fd);
  connection->fd = -1;
}

void describe(const gradrail_transport_connection* connection, gradrail_transport_text* result) {
  snprintf(result->text, sizeof(result->text), "%s", connection->ends);
}

/* Sending. */

static int check_post(const gradrail_transport_connection* connection, gradrail_transport_text* error) {
  if (connection->state == LOST || connection->send_failed) {
    return fail(error, GRADRAIL_TRANSPORT_UNAVAILABLE, "the peer is lost: %s", connection->cause_text);
  }
  return connection->queue.posts < POST_LIMIT ? GRADRAIL_TRANSPORT_OK : GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED;
}

static void name_remote(struct frame* frame, const struct key* key, uint64_t offset, uint64_t bytes) {
  frame->region = key->region;
  memcpy(frame->token, key->token, TOKEN_BYTES);
  frame->offset = offset;
  frame->bytes = bytes;
}

int put(gradrail_transport_connection* connection, const gradrail_transport_put* put, gradrail_transport_text* error) {
  const int refused = check_post(connection, error);
  if (refused) return refused;
  struct outgoing* added = push(connection, PUT);
  if (put->bytes > 0) {
    name_remote(&added->frame, &connection->imported[put->target_region], put->target_offset, put->bytes);
    added->payload = put->source->data + put->source_offset;
    added->payload_bytes = put->bytes;
  }
  added->frame.notify = put->notify;
  added->frame.immediate = put->immediate;
  added->operation = put->operation;
  ++connection->context->puts;
  connection->context->put_bytes += put->bytes;
  flush(connection);
  return GRADRAIL_TRANSPORT_OK;
}

int get(gradrail_transport_connection* connection, const gradrail_transport_get* get, gradrail_transport_text* error) {
  const int refused = check_post(connection, error);
  if (refused) return refused;
  if (connection->end_get - connection->first_get == GET_LIMIT) return GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED;
  connection->gets[connection->end_get++ % GET_LIMIT] =
      (struct pending_get){.target = get->bytes == 0 ? NULL : get->target->data + get->target_offset,
                           .bytes = get->bytes,
                           .operation = get->operation};
  name_remote(&push(connection, GET)->frame, &connection->imported[get->source_region], get->source_offset, get->bytes);
  ++connection->context->gets;
  flush(connection);
  return GRADRAIL_TRANSPORT_OK;
}

int send_message(gradrail_transport_connection* connection, const void* message, size_t bytes,
                 gradrail_transport_text* error) {
  const int refused = check_post(connection, error);
  if (refused) return refused;
  unsigned char* copy = malloc(bytes + 1);
  if (copy == NULL) return fail(error, GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED, "no memory for a message");
  if (bytes > 0) memcpy(copy, message, bytes);
  struct outgoing* added = push(connection, MESSAGE);
  added->frame.bytes = bytes;
  added->payload = added->copy = copy;
  added->payload_bytes = bytes;
  ++connection->context->messages;
  flush(connection);
  return GRADRAIL_TRANSPORT_OK;
}

/* Whether the region of an answer is still registered, and so the payload still memory. */
static int payload_is_valid(const gradrail_transport_connection* connection, const struct outgoing* outgoing) {
  return outgoing->frame.type != GET_ANSWER ||
         resolve(connection->context, &outgoing->frame, GRADRAIL_TRANSPORT_REMOTE_READ) != NULL;
}

static void set_blocked(gradrail_transport_connection* connection, int blocked) {
  if (connection->blocked == blocked) return;
  connection->blocked = blocked;
  watch(connection, EPOLL_CTL_MOD);
}

/* Sends from the first frame that is not sent; whether it made progress. */
static int send_some(gradrail_transport_connection* connection, uint64_t limit) {
  struct send_queue* queue = &connection->queue;
  struct outgoing* outgoing = &queue->frames[queue->next % QUEUE_LENGTH];
  if (!payload_is_valid(connection, outgoing)) {
    lose(connection, GRADRAIL_TRANSPORT_PERMISSION_DENIED, "refused the peer: get from a region that has ended");
    return 0;
  }
  const size_t header = sizeof(outgoing->frame);
  const uint64_t header_sent = queue->sent_bytes < header ? queue->sent_bytes : header;
  const uint64_t payload_sent = queue->sent_bytes - header_sent;
  const uint64_t payload_left = outgoing->payload_bytes - payload_sent;
  struct iovec pieces[2] = {
      {.iov_base = (unsigned char*)&outgoing->frame + header_sent, .iov_len = header - header_sent},
      {.iov_base = (unsigned char*)outgoing->payload + payload_sent,
       .iov_len = payload_left < limit ? payload_left : limit}};
  const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
  const ssize_t sent = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
  if (sent < 0 && errno == EINTR) return 1;
  if (sent < 0) {
    if (errno == EAGAIN) {
      set_blocked(connection, 1);
    } else {
      /* Earlier messages of the peer are still to be read. The end of the stream then reports the loss. */
      connection->send_failed = 1;
      snprintf(connection->cause_text, sizeof(connection->cause_text), "send: %s", strerror(errno));
    }
    return 0;
  }
  queue->sent_bytes += (uint64_t)sent;
  if (queue->sent_bytes == header + outgoing->payload_bytes) {
    ++queue->next;
    queue->sent_bytes = 0;
    free(outgoing->copy);
    outgoing->copy = NULL;
  }
  return 1;
}

static int is_sendable(const gradrail_transport_connection* connection) {
  return connection->state != LOST && !connection->blocked && !connection->send_failed &&
         connection->queue.next != connection->queue.end;
}

void flush(gradrail_transport_connection* connection) {
  for (int i = 0; i < QUEUE_LENGTH && is_sendable(connection); ++i) {
    if (!send_some(connection, TURN_BYTES)) return;
  }
}

void unblock(gradrail_transport_connection* connection) {
  set_blocked(connection, 0);
  flush(connection);
}

/* Receiving. */

static void add(struct batch* batch, gradrail_transport_completion completion) {
  batch->entries[batch->count++] = completion;
}

static void begin_answer(gradrail_transport_connection* connection) {
  const struct frame* frame = &connection->header;
  const unsigned char* source = resolve(connection->context, frame, GRADRAIL_TRANSPORT_REMOTE_READ);
  if (source == NULL) {
    lose(connection, GRADRAIL_TRANSPORT_PERMISSION_DENIED, "refused the peer: get of %llu bytes at %llu",
         (unsigned long long)frame->bytes, (unsigned long long)frame->offset);
    return;
  }
  struct outgoing* added = push(connection, GET_ANSWER);
  added->frame = *frame;
  added->frame.type = GET_ANSWER;
  added->payload = source;
  added->payload_bytes = frame->bytes;
}

/* The header is complete: chooses the place of the payload. */
static void begin_payload(gradrail_transport_connection* connection) {
  const struct frame* frame = &connection->header;
  connection->missing_bytes = frame->type == GET ? 0 : frame->bytes;
  connection->target = NULL;
  if ((frame->type == HELLO) != (connection->state == WAITS_FOR_HELLO)) {
    lose(connection, GRADRAIL_TRANSPORT_DATA_LOSS, "the peer does not speak this protocol");
  } else if (frame->type == HELLO && frame->immediate == HELLO_NUMBER && frame->bytes == 0) {
    connection->state = OPEN;
  } else if (frame->type == PUT) {
    if (frame->bytes > 0) connection->target = resolve(connection->context, frame, GRADRAIL_TRANSPORT_REMOTE_WRITE);
    if (frame->bytes > 0 && connection->target == NULL) {
      lose(connection, GRADRAIL_TRANSPORT_PERMISSION_DENIED, "refused the peer: put of %llu bytes at %llu",
           (unsigned long long)frame->bytes, (unsigned long long)frame->offset);
    }
  } else if (frame->type == MESSAGE && frame->bytes <= MESSAGE_BYTES) {
    connection->target = connection->message;
  } else if (frame->type == GET) {
    begin_answer(connection);
  } else if (frame->type == GET_ANSWER && connection->first_get != connection->end_get &&
             frame->bytes == connection->gets[connection->first_get % GET_LIMIT].bytes) {
    connection->target = connection->gets[connection->first_get % GET_LIMIT].target;
  } else {
    lose(connection, GRADRAIL_TRANSPORT_DATA_LOSS, "unexpected frame of type %u with %llu bytes", (unsigned)frame->type,
         (unsigned long long)frame->bytes);
  }
}

/* The frame is complete: at most one completion. */
static void finish_frame(gradrail_transport_connection* connection, struct batch* batch) {
  const struct frame* frame = &connection->header;
  connection->header_bytes = 0;
  if (frame->type == HELLO) {
    connection->announced = 1;
    add(batch, (gradrail_transport_completion){.kind = GRADRAIL_TRANSPORT_CONNECTED, .connection = connection});
  } else if (frame->type == PUT && frame->notify) {
    add(batch, (gradrail_transport_completion){
                   .kind = GRADRAIL_TRANSPORT_PUT_ARRIVED, .connection = connection, .immediate = frame->immediate});
  } else if (frame->type == MESSAGE) {
    unsigned char* body = connection->context->arrived[batch->count];
    memcpy(body, connection->message, frame->bytes);
    add(batch, (gradrail_transport_completion){.kind = GRADRAIL_TRANSPORT_MESSAGE,
                                               .connection = connection,
                                               .message = body,
                                               .message_bytes = frame->bytes});
  } else if (frame->type == GET_ANSWER) {
    add(batch,
        (gradrail_transport_completion){.kind = GRADRAIL_TRANSPORT_GET_DONE,
                                        .connection = connection,
                                        .operation = connection->gets[connection->first_get++ % GET_LIMIT].operation});
  }
}

/* Whether the target of a put exists: its region may have ended since its header. */
static int target_is_valid(const gradrail_transport_connection* connection) {
  return connection->header.type != PUT ||
         resolve(connection->context, &connection->header, GRADRAIL_TRANSPORT_REMOTE_WRITE) != NULL;
}

/* Bytes read; 0 if there are none now, or the connection is lost. */
static size_t read_some(gradrail_transport_connection* connection, void* to, size_t bytes) {
  const ssize_t got = recv(connection->fd, to, bytes, 0);
  if (got > 0) return (size_t)got;
  if (got == 0) {
    lose(connection, GRADRAIL_TRANSPORT_UNAVAILABLE, "the peer closed the connection");
  } else if (errno != EAGAIN && errno != EINTR) {
    lose(connection, GRADRAIL_TRANSPORT_UNAVAILABLE, "recv: %s (the peer was killed, or refused an operation)",
         strerror(errno));
  }
  return 0;
}

/* A peer within its GET_LIMIT never makes the queue run out of room for answers longer than until report(). */
static int has_room_for_answer(const struct send_queue* queue) {
  return queue->end - queue->first - queue->posts < POST_LIMIT;
}

void receive(gradrail_transport_connection* connection, struct batch* batch) {
  const size_t header = sizeof(connection->header);
  size_t budget = TURN_BYTES;
  while (budget > 0 && connection->state != LOST && !is_full(batch) && has_room_for_answer(&connection->queue)) {
    size_t got = 0;
    if (connection->header_bytes < header) {
      unsigned char* to = (unsigned char*)&connection->header + connection->header_bytes;
      got = read_some(connection, to, header - connection->header_bytes);
      connection->header_bytes += got;
      if (got > 0 && connection->header_bytes == header) begin_payload(connection);
    } else if (!target_is_valid(connection)) {
      lose(connection, GRADRAIL_TRANSPORT_PERMISSION_DENIED, "refused the peer: put into a region that has ended");
    } else {
      got = read_some(connection, connection->target,
                      connection->missing_bytes < budget ? connection->missing_bytes : budget);
      connection->target += got;
      connection->missing_bytes -= got;
    }
    if (got == 0) return;
    budget -= got < budget ? got : budget;
    if (connection->state != LOST && connection->header_bytes == header && connection->missing_bytes == 0) {
      finish_frame(connection, batch);
    }
  }
}

void report(gradrail_transport_connection* connection, struct batch* batch) {
  struct send_queue* queue = &connection->queue;
  while (queue->first != queue->next && connection->state != LOST) {
    const struct outgoing* sent = &queue->frames[queue->first % QUEUE_LENGTH];
    if (sent->operation != 0 && is_full(batch)) return; /* a full batch must not hold frames that need no room */
    ++queue->first;
    if (sent->frame.type != GET_ANSWER) --queue->posts;
    if (sent->operation == 0) continue;
    add(batch, (gradrail_transport_completion){
                   .kind = GRADRAIL_TRANSPORT_PUT_DONE, .connection = connection, .operation = sent->operation});
  }
  if (connection->state != LOST || connection->reported || !connection->announced || is_full(batch)) return;
  connection->reported = 1;
  add(batch, (gradrail_transport_completion){.kind = GRADRAIL_TRANSPORT_PEER_LOST,
                                             .connection = connection,
                                             .cause = connection->cause,
                                             .cause_text = connection->cause_text});
}

int has_work(const gradrail_transport_connection* connection) {
  if (connection->state == LOST) return !connection->reported;
  return is_sendable(connection) || connection->queue.first != connection->queue.next;
}
