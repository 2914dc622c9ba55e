/* own_allocator.h - whether a test may put functions of its own in the place of malloc and the
 * like.
 *
 * Sanitizers bring an allocator of their own; under them memory does not run out. */
#ifndef TEST_OWN_ALLOCATOR_H
#define TEST_OWN_ALLOCATOR_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_ALLOCATOR 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OWN_ALLOCATOR 0
#endif
#endif
#ifndef OWN_ALLOCATOR
#define OWN_ALLOCATOR 1
#endif

#endif
