//! Keys and the tenants behind them.
