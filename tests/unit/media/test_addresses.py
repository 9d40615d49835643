import pytest

from server.media.addresses import is_public_address

FORBIDDEN = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254
168.63.129.16 ::ffff:168.63.129.16 169.254.170.2 100.100.100.200 fd00:ec2::254
169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.0.170 192.0.2.1 192.88.99.1 192.168.0.1
198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1
255.255.255.255 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254
::ffff:7f00:1 64:ff9b::7f00:1 64:ff9b:1::1 100::1 2001::1 2001:10::1 2001:20::1 2001:db8::1
2002:7f00:1:: 2002:a00:1::1 3fff::1 fc00::1 fd12:3456::1 fe80::1 fe80::1%eth0 fec0::1
ff02::1 ff0e::1 5f00::1
"""

PUBLIC = """
1.1.1.1 8.8.8.8 168.63.129.15 168.63.129.17
9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1
172.15.255.255 172.32.0.0 192.0.1.1 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0
223.255.255.255 ::ffff:8.8.8.8 2001:4860:4860::8888 2606:4700::1111 2a00:1450:4001::1
"""


@pytest.mark.parametrize("address", FORBIDDEN.split())
def test_special_addresses_are_not_public(address):
    assert not is_public_address(address)


@pytest.mark.parametrize("address", PUBLIC.split())
def test_addresses_of_the_internet_are_public(address):
    assert is_public_address(address)


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "0x7f000001"])
def test_what_is_no_address_is_an_error(text):
    with pytest.raises(ValueError, match="does not appear to be"):
        is_public_address(text)
