/* sd_notify.h - what a service manager of systemd's protocol is told: lines like "READY=1" in one
 * datagram to the socket that NOTIFY_SOCKET names (a path, or "@name" of the abstract namespace).
 *
 * Without NOTIFY_SOCKET everything here does nothing.
 * Nothing here waits: a manager that does not read fills its queue (10 datagrams by default) and
 * must not hold up the loops. Thread: sd_notify_alive and sd_notify_watchdog_us any, once it is
 * open; the others front. */
#ifndef INFERD_SD_NOTIFY_H
#define INFERD_SD_NOTIFY_H

#include "inferd/base.h"
#include "inferd/status.h"

/* An error when NOTIFY_SOCKET is set and cannot be used. */
inferd_status sd_notify_open(inferd_err *err);
void sd_notify_close(void);
/* A change of state, such as "READY=1".  Without room in the manager's queue it is kept, behind
 * those that came before it, for a later flush. */
void sd_notify_state(const char *lines);
void sd_notify_flush(void);
/* "WATCHDOG=1"; without room it is not sent, and the next one says the same. */
void sd_notify_alive(void);
/* "RELOADING=1" with the time that the protocol wants beside it. */
void sd_notify_reloading(void);
/* Within which the manager wants to hear of this process; 0: it does not. */
uint64_t sd_notify_watchdog_us(void);

#endif
