"""Which network addresses a stranger may make this server talk to."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_SPECIAL_IPV4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's own services, inside of every machine of its
        "169.254.0.0/16",  # link-local, cloud metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_SPECIAL_IPV6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: any IPv4 address inside
        "3fff::/20",  # documentation
    )
)


def is_public_address(address: str) -> bool:
    """Returns whether an IP address belongs to the public internet and nothing else.

    ``ipaddress.is_global`` is no substitute: it is true for NAT64, 6to4 and multicast addresses.

    Raises:
        ValueError: this is no IP address.
    """
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return _is_public_ipv4(ip.ipv4_mapped)
        return ip in _GLOBAL_IPV6 and not any(ip in network for network in _SPECIAL_IPV6)
    return _is_public_ipv4(ip)


def _is_public_ipv4(ip: IPv4Address) -> bool:
    return not any(ip in network for network in _SPECIAL_IPV4)
