/* sd_notify.h - what a service manager of systemd's protocol is told: lines like "READY=1" in one
 * datagram to the socket that NOTIFY_SOCKET names (a path, or "@name" of the abstract namespace).
 *
 * Without NOTIFY_SOCKET everything here does nothing.
 * Thread: sd_notify and sd_notify_watchdog_us any, once it is open; the others front. */
#ifndef INFERD_SD_NOTIFY_H
#define INFERD_SD_NOTIFY_H

#include "inferd/base.h"
#include "inferd/status.h"

/* An error when NOTIFY_SOCKET is set and cannot be used. */
inferd_status sd_notify_open(inferd_err *err);
void sd_notify_close(void);
/* Whole lines.  What the manager does not take within a second is lost. */
void sd_notify(const char *lines);
/* "RELOADING=1" with the time that the protocol wants beside it. */
void sd_notify_reloading(void);
/* Within which the manager wants to hear of this process; 0: it does not. */
uint64_t sd_notify_watchdog_us(void);

#endif
