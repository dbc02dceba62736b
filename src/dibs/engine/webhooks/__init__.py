"""Webhooks: `admin` makes and shows them, `dispatcher` delivers, `target` says where one may lead, `sender` sends."""
