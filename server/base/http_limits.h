/* http_limits.h - limits of the HTTP transport, which the configuration sets. */
#ifndef INFERD_HTTP_LIMITS_H
#define INFERD_HTTP_LIMITS_H

#include "inferd/base.h"

typedef struct http_limits {    // fields of "limits" in the configuration; defaults here
    uint32_t connections_max;   // 10,240
    uint32_t header_bytes_max;  // 16 KiB; a connection's buffer is somewhat larger
    uint64_t body_bytes_max;    // 4 MiB
    uint64_t bodies_bytes_max;  // all bodies in memory; 256 MiB
    uint32_t header_timeout_ms; // first byte to last header; 10,000
    uint32_t body_timeout_ms;   // headers to end of body; 30,000
    uint32_t idle_timeout_s;    // keep-alive; 75
    uint32_t send_stall_ms;     // of a stream, while the client reads nothing; 30,000
    uint32_t stream_soft_bytes; // unsent bytes of a stream that pause its sequence; 64 KiB
    uint32_t stream_hard_bytes; // unsent bytes that cut the stream; 256 KiB
    uint32_t heartbeat_ms;      // `: ping` on a quiet stream; 15,000
} http_limits;
/* As in the option table (test_config.c compares), for servers without a configuration. */
static const http_limits http_limits_default = {
    .connections_max = 10240,
    .header_bytes_max = 16 * 1024,
    .body_bytes_max = 4ull * 1024 * 1024,
    .bodies_bytes_max = 256ull * 1024 * 1024,
    .header_timeout_ms = 10000,
    .body_timeout_ms = 30000,
    .idle_timeout_s = 75,
    .send_stall_ms = 30000,
    .stream_soft_bytes = 64 * 1024,
    .stream_hard_bytes = 256 * 1024,
    .heartbeat_ms = 15000,
};

#endif
