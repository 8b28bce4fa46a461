/* Functions for the inline functions and macros of DPDK; one call per burst. Built with the feature `dpdk` only. */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>

#define BURST 32
/* Buffer bytes beyond the MTU: Ethernet header and VLAN tags. */
#define BEYOND_MTU 64

/* A thread that is not registered with the EAL has no mbuf cache, which costs time with every burst. */
static __thread int registered;

static void register_thread(void)
{
	if (!registered) {
		registered = 1;
		rte_thread_register();
	}
}

int lr_dpdk_init(int argc, char **argv)
{
	int parsed = rte_eal_init(argc, argv);

	registered = 1;
	return parsed < 0 ? -rte_errno : 0;
}

/* Creates a virtual device or probes a physical one; returns the number of its port. */
int lr_dpdk_attach(const char *device, uint16_t *port)
{
	struct rte_dev_iterator it;
	uint16_t port_id;
	int failed;

	register_thread();
	failed = rte_dev_probe(device);
	if (failed != 0)
		return failed;
	RTE_ETH_FOREACH_MATCHING_DEV(port_id, device, &it) {
		*port = port_id;
		rte_eth_iterator_cleanup(&it);
		return 0;
	}
	return -ENODEV;
}

/* Creates a pool of contiguous frames. Without huge pages DPDK lets no frame cross a page: each or every second page
 * would begin with one, all in the same few sets of the L1 cache, and reading a burst would miss it 32 times. If bus
 * addresses are virtual addresses of the process, page boundaries do not matter. */
static struct rte_mempool *create_pool(const char *name, unsigned int count, uint16_t data_bytes, int socket)
{
	const unsigned int cache = 256;
	struct rte_pktmbuf_pool_private private_data = { .mbuf_data_room_size = data_bytes };
	struct rte_mempool *frames;
	int failed;

	if (rte_eal_has_hugepages() || rte_eal_iova_mode() != RTE_IOVA_VA)
		return rte_pktmbuf_pool_create(name, count, cache, 0, data_bytes, socket);
	frames = rte_mempool_create_empty(name, count, sizeof(struct rte_mbuf) + data_bytes, cache, sizeof(private_data),
		socket, RTE_MEMPOOL_F_NO_IOVA_CONTIG);
	if (frames == NULL)
		return NULL;
	failed = rte_mempool_set_ops_byname(frames, rte_mbuf_best_mempool_ops(), NULL);
	if (failed == 0) {
		rte_pktmbuf_pool_init(frames, &private_data);
		failed = rte_mempool_populate_default(frames);
	}
	if (failed < 0) {
		rte_mempool_free(frames);
		rte_errno = -failed;
		return NULL;
	}
	rte_mempool_obj_iter(frames, rte_pktmbuf_init, NULL);
	return frames;
}

/* Starts a port with one receive and one transmit queue over a pool of its own. */
int lr_dpdk_start(uint16_t port, const char *name, uint16_t *rxd, uint16_t *txd, uint16_t mtu,
	void **pool)
{
	struct rte_eth_conf conf;
	struct rte_eth_dev_info info;
	struct rte_mempool *frames;
	int socket = rte_eth_dev_socket_id(port);
	int failed;

	memset(&conf, 0, sizeof(conf));
	failed = rte_eth_dev_info_get(port, &info);
	if (failed != 0)
		return failed;
	if (info.max_mtu != 0 && mtu > info.max_mtu)
		return -EMSGSIZE;
	/* A buffer's size has 16 bits. */
	if (RTE_PKTMBUF_HEADROOM + mtu + BEYOND_MTU > UINT16_MAX)
		return -EMSGSIZE;
	conf.rxmode.mtu = mtu;
	failed = rte_eth_dev_configure(port, 1, 1, &conf);
	if (failed != 0)
		return failed;
	failed = rte_eth_dev_adjust_nb_rx_tx_desc(port, rxd, txd);
	if (failed != 0)
		return failed;
	frames = create_pool(name, *rxd + *txd + 1024, RTE_PKTMBUF_HEADROOM + mtu + BEYOND_MTU,
		socket < 0 ? 0 : socket);
	if (frames == NULL)
		return -rte_errno;
	failed = rte_eth_rx_queue_setup(port, 0, *rxd, socket < 0 ? 0 : socket, NULL, frames);
	if (failed == 0)
		failed = rte_eth_tx_queue_setup(port, 0, *txd, socket < 0 ? 0 : socket, NULL);
	if (failed == 0)
		failed = rte_eth_dev_start(port);
	if (failed != 0) {
		rte_mempool_free(frames);
		return failed;
	}
	/* Virtual devices may not support it. */
	(void)rte_eth_promiscuous_enable(port);
	*pool = frames;
	return 0;
}

/* Pools of closed ports, kept until all of their buffers are returned: another device may still hold some that were
 * forwarded to it. A pool without a free entry here is never freed. */
#define RETIRED 64
static struct rte_mempool *retired[RETIRED];

static void retire(struct rte_mempool *pool)
{
	unsigned int i;

	for (i = 0; i < RETIRED; i++) {
		if (retired[i] == NULL && pool != NULL) {
			retired[i] = pool;
			pool = NULL;
		}
		if (retired[i] != NULL && rte_mempool_full(retired[i])) {
			rte_mempool_free(retired[i]);
			retired[i] = NULL;
		}
	}
}

void lr_dpdk_stop(uint16_t port, void *pool)
{
	struct rte_mbuf *mbufs[BURST];
	uint16_t count;
	unsigned int i;

	register_thread();
	/* Received frames that were not polled: buffers of this pool and of others. */
	for (i = 0; i < 1024; i++) {
		count = rte_eth_rx_burst(port, 0, mbufs, BURST);
		if (count == 0)
			break;
		rte_pktmbuf_free_bulk(mbufs, count);
	}
	if (rte_eth_dev_stop(port) == 0)
		(void)rte_eth_dev_close(port);
	retire(pool);
}

int lr_dpdk_address(uint16_t port, uint8_t *address)
{
	struct rte_ether_addr mac;
	int failed = rte_eth_macaddr_get(port, &mac);

	if (failed == 0)
		memcpy(address, mac.addr_bytes, 6);
	return failed;
}

/* Receives frames: returns their addresses and lengths. A frame of several segments that cannot be made
 * contiguous has length 0. */
uint16_t lr_dpdk_receive(uint16_t port, void **frames, const uint8_t **bytes, uint32_t *lengths,
	uint16_t max_frames)
{
	struct rte_mbuf **mbufs = (struct rte_mbuf **)frames;
	uint16_t i, count;

	register_thread();
	count = rte_eth_rx_burst(port, 0, mbufs, max_frames < BURST ? max_frames : BURST);
	for (i = 0; i < count; i++) {
		int contiguous = mbufs[i]->nb_segs == 1 || rte_pktmbuf_linearize(mbufs[i]) == 0;

		bytes[i] = rte_pktmbuf_mtod(mbufs[i], const uint8_t *);
		lengths[i] = contiguous ? rte_pktmbuf_data_len(mbufs[i]) : 0;
	}
	return count;
}

void lr_dpdk_free(void **frames, uint16_t count)
{
	rte_pktmbuf_free_bulk((struct rte_mbuf **)frames, count);
}

/* Copies frames and sends them; returns the number sent, from the first on. */
uint16_t lr_dpdk_transmit(uint16_t port, void *pool, const uint8_t **bytes, const uint16_t *lengths,
	uint16_t count)
{
	struct rte_mbuf *mbufs[BURST];
	uint16_t i, sent;

	register_thread();
	if (count > BURST)
		count = BURST;
	if (rte_pktmbuf_alloc_bulk(pool, mbufs, count) != 0)
		return 0;
	for (i = 0; i < count; i++) {
		char *data = rte_pktmbuf_append(mbufs[i], lengths[i]);

		/* The frame does not fit: the caller keeps it and those behind it. */
		if (data == NULL)
			break;
		memcpy(data, bytes[i], lengths[i]);
	}
	if (i < count) {
		rte_pktmbuf_free_bulk(mbufs + i, count - i);
		count = i;
	}
	sent = rte_eth_tx_burst(port, 0, mbufs, count);
	if (sent < count)
		rte_pktmbuf_free_bulk(mbufs + sent, count - sent);
	return sent;
}

/* Result of one direct forwarding visit: frames received and sent, frames whose lengths were read, and the bytes of
 * these. Same layout as the struct of the Rust side. */
struct lr_forward_counts {
	uint32_t received;
	uint32_t sent;
	uint32_t sized;
	uint32_t unused;
	uint64_t received_bytes;
	uint64_t sent_bytes;
};

/* Polls a port and sends its frames on another, until a poll returns less than a full burst. Frame data is not
 * accessed; the first `sized_polls` polls read the lengths. */
void lr_dpdk_pass(uint16_t from, uint16_t to, uint16_t max_frames, uint32_t polls, uint32_t sized_polls,
	struct lr_forward_counts *counts)
{
	struct rte_mbuf *mbufs[BURST];
	uint32_t poll;

	register_thread();
	memset(counts, 0, sizeof(*counts));
	if (max_frames > BURST)
		max_frames = BURST;
	for (poll = 0; poll < polls; poll++) {
		uint16_t i, count = rte_eth_rx_burst(from, 0, mbufs, max_frames), sent;
		uint64_t bytes = 0;

		if (count == 0)
			break;
		if (poll < sized_polls) {
			for (i = 0; i < count; i++)
				bytes += rte_pktmbuf_pkt_len(mbufs[i]);
			counts->sized += count;
			counts->received_bytes += bytes;
		}
		sent = rte_eth_tx_burst(to, 0, mbufs, count);
		counts->received += count;
		counts->sent += sent;
		if (sent < count) {
			if (poll < sized_polls)
				for (i = sent; i < count; i++)
					bytes -= rte_pktmbuf_pkt_len(mbufs[i]);
			rte_pktmbuf_free_bulk(mbufs + sent, count - sent);
		}
		counts->sent_bytes += bytes;
		if (count < max_frames)
			break;
	}
}

/* Returns 1 if the device counts received bytes, 0 if not, -EAGAIN if it has received none yet. */
int lr_dpdk_counts_bytes(uint16_t port)
{
	struct rte_eth_stats stats;
	int failed = rte_eth_stats_get(port, &stats);

	if (failed != 0)
		return 0;
	return stats.ipackets == 0 ? -EAGAIN : stats.ibytes != 0;
}

/* Frames dropped by the device: no descriptor, invalid, no mbuf. */
int lr_dpdk_dropped(uint16_t port, uint64_t *dropped)
{
	struct rte_eth_stats stats;
	int failed = rte_eth_stats_get(port, &stats);

	if (failed == 0) {
		dropped[0] = stats.imissed;
		dropped[1] = stats.ierrors;
		dropped[2] = stats.rx_nombuf;
	}
	return failed;
}
