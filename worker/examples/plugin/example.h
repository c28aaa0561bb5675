#ifndef EXAMPLE_H
#define EXAMPLE_H

/* A transport over TCP in plain C: small enough to read, complete enough to train. README.md lists the missing parts.
 *
 * Format  A connection carries frames: a header, then its payload. Both ends have the same byte order.
 *
 *           type        region, token      offset         bytes             immediate      payload
 *           HELLO       0                  0              0                 HELLO_NUMBER   -
 *           PUT         of the target      in the region  of the payload    of the notice  bytes for the region
 *           MESSAGE     0                  0              of the payload    0              the message
 *           GET         of the source      in the region  requested         0              -
 *           GET_ANSWER  0                  0              of the payload    0              bytes of the region
 *
 *         HELLO is the first frame, from the side that connects. Gets are answered in their order.
 * Key     KEY_MAGIC, the number of the region, a random token. A number is never used again. */

#include <stddef.h>
#include <stdint.h>

#include "gradrail/transport.h"

#define HELLO_NUMBER UINT64_C(0x656c706d61786531)
#define KEY_MAGIC UINT64_C(0x79656b656c706d31)
#define TOKEN_BYTES 16
#define MESSAGE_BYTES GRADRAIL_TRANSPORT_MIN_MESSAGE_BYTES
#define BATCH 64       /* completions of one poll() */
#define GET_LIMIT 64   /* gets of this side that are not answered */
#define POST_LIMIT 128 /* frames of this side in the queue, and answers in the queue: more than GET_LIMIT */
#define QUEUE_LENGTH (2 * POST_LIMIT)
#define TURN_BYTES (1 << 20) /* limit for one connection in one poll(), so that the others have their turn */

enum frame_type { HELLO = 1, PUT, MESSAGE, GET, GET_ANSWER };

struct frame {
  uint32_t type;
  uint32_t notify; /* PUT: not 0: the peer reports the arrival */
  uint64_t region;
  unsigned char token[TOKEN_BYTES];
  uint64_t offset;
  uint64_t bytes;
  uint64_t immediate;
};

struct key {
  uint64_t magic;
  uint64_t region;
  unsigned char token[TOKEN_BYTES];
};

struct gradrail_transport_region {
  struct gradrail_transport_region* next;
  struct key key;
  unsigned char* data;
  size_t bytes;
  uint32_t access;
};

/* A frame of the send queue. */
struct outgoing {
  struct frame frame;
  const unsigned char* payload;
  unsigned char* copy;    /* MESSAGE: `payload` in memory of the queue */
  uint64_t payload_bytes; /* 0 for GET */
  uint64_t operation;     /* PUT: reported when sent, if it is not 0 */
};

struct pending_get {
  unsigned char* target;
  uint64_t bytes;
  uint64_t operation;
};

/* Counters run on; their remainders are places: first <= next <= end, end - first <= QUEUE_LENGTH. */
struct send_queue {
  struct outgoing frames[QUEUE_LENGTH];
  uint64_t first; /* sent and not reported up to `next` */
  uint64_t next;  /* the next one to send */
  uint64_t end;
  uint64_t sent_bytes; /* sent part of frame `next`, with its header */
  uint64_t posts;      /* frames of this side, and not answers, from `first` on */
};

enum state { WAITS_FOR_HELLO, OPEN, LOST };

struct gradrail_transport_connection {
  gradrail_transport_connection* next;
  gradrail_transport_context* context;
  int fd; /* -1 when lost */
  enum state state;
  int announced; /* CONNECTED is reported, or the connection is a result of connect() */
  int reported;  /* PEER_LOST is reported */
  int blocked;   /* waits for the descriptor to be writable */
  int send_failed;
  int cause;
  char cause_text[256];
  char ends[140]; /* text for people */

  struct key* imported;
  uint64_t imported_count;

  struct send_queue queue;
  struct pending_get gets[GET_LIMIT];
  uint64_t first_get, end_get;

  struct frame header; /* header of the frame that arrives */
  size_t header_bytes; /* its part that has arrived */
  unsigned char* target;
  uint64_t missing_bytes; /* part of the payload */
  unsigned char message[MESSAGE_BYTES];
};

struct gradrail_transport_context {
  int epoll;
  int listener;      /* -1: none */
  int accept_paused; /* no free descriptor: until a connection ends */
  char bind_host[256];
  void (*log)(int level, const char* text);
  gradrail_transport_region* regions;
  uint64_t next_region;
  gradrail_transport_connection* connections;
  uint64_t puts, put_bytes, gets, messages;    /* posted */
  unsigned char arrived[BATCH][MESSAGE_BYTES]; /* message i belongs to completion i of the last poll() */
};

/* The completions of one poll(). */
struct batch {
  gradrail_transport_completion* entries;
  size_t count, capacity;
};

static inline int is_full(const struct batch* batch) { return batch->count == batch->capacity; }

/* plugin.c: writes the text and returns the code. */
int fail(gradrail_transport_text* error, int code, const char* format, ...) __attribute__((format(printf, 3, 4)));

/* memory_region.c */
int register_memory(gradrail_transport_context* context, const gradrail_transport_memory* memory,
                    gradrail_transport_region** region, gradrail_transport_key* key, gradrail_transport_text* error);
void deregister_memory(gradrail_transport_context* context, gradrail_transport_region* region);
int import_region(gradrail_transport_connection* connection, const void* key, size_t key_bytes, uint64_t* region,
                  gradrail_transport_text* error);
/* The memory that the frame of a peer names; NULL if it may not access all of it with this right. */
unsigned char* resolve(const gradrail_transport_context* context, const struct frame* frame, uint32_t right);

/* connection.c */
gradrail_transport_connection* new_connection(gradrail_transport_context* context, int fd, int accepted);
void free_connection(gradrail_transport_connection* connection); /* the list of its context has it no more */
int put(gradrail_transport_connection* connection, const gradrail_transport_put* put, gradrail_transport_text* error);
int get(gradrail_transport_connection* connection, const gradrail_transport_get* get, gradrail_transport_text* error);
int send_message(gradrail_transport_connection* connection, const void* message, size_t bytes,
                 gradrail_transport_text* error);
void describe(const gradrail_transport_connection* connection, gradrail_transport_text* result);
void flush(gradrail_transport_connection* connection);                        /* sends without blocking */
void unblock(gradrail_transport_connection* connection);                      /* the descriptor is writable */
void receive(gradrail_transport_connection* connection, struct batch* batch); /* receives while the batch has room */
void report(gradrail_transport_connection* connection, struct batch* batch);  /* sent puts, then the loss */
int has_work(const gradrail_transport_connection* connection);                /* work that needs no event of epoll */

/* socket.c: a descriptor, or -1 with the error written. */
int connect_socket(const char* address, const char* bind_host, uint64_t timeout_ns, int* code,
                   gradrail_transport_text* error);
int listen_socket(const char* address, int* code, gradrail_transport_text* error);
void socket_address(int fd, int of_peer, char* text, size_t bytes);

#endif
