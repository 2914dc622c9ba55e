/* sd_notify.h - notifies a service manager with systemd's protocol: lines like "READY=1" in one
 * datagram to the socket that NOTIFY_SOCKET names (a path, or "@name" of the abstract namespace).
 *
 * Without NOTIFY_SOCKET all functions do nothing.  No function blocks: the queue of a manager that
 * does not read fills up (10 datagrams by default) and must not delay the loops.
 * Thread: sd_notify_alive and sd_notify_watchdog_us any, once it is open; the others front. */
#ifndef INFERD_SD_NOTIFY_H
#define INFERD_SD_NOTIFY_H

#include "inferd/base.h"
#include "inferd/status.h"

/* An error if NOTIFY_SOCKET is set and cannot be used. */
inferd_status sd_notify_open(inferd_err *err);
void sd_notify_close(void);
/* A change of state, as "READY=1".  While the queue is full it waits behind earlier ones. */
void sd_notify_state(const char *lines);
void sd_notify_flush(void);
/* "WATCHDOG=1"; if the queue is full it is dropped, since the next one has the same content. */
void sd_notify_alive(void);
/* "EXTEND_TIMEOUT_USEC=...": the start or the stop that goes on needs so many seconds from now on.
 */
void sd_notify_more_time(uint32_t seconds);
/* "RELOADING=1" with the time that the protocol requires. */
void sd_notify_reloading(void);
/* The manager's time limit between two signs of life; 0: none. */
uint64_t sd_notify_watchdog_us(void);

#endif
